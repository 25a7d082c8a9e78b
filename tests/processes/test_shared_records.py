"""Records in a directory that several machines share, as two supervisors see them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.errors import WtrainError
from watchdog_train.peers.directory import RECORD_CAP_BYTES, DirectoryRecords
from watchdog_train.peers.shared import SharedRecords
from watchdog_train.supervisor.joining import link_to
from watchdog_train.system import current

pytestmark = pytest.mark.processes


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def pair(place: Path) -> Iterator[tuple[SharedRecords, SharedRecords]]:
    found = tuple(SharedRecords(DirectoryRecords(place), number, 2) for number in range(2))
    yield found[0], found[1]
    for one in found:
        one.remove()


def test_each_sees_what_the_other_says(pair: tuple[SharedRecords, SharedRecords]) -> None:
    """Also the newest word only, and what was said before it looked."""
    first, second = pair
    first.publish(0, b"one")
    wait_until(lambda: second.read().get(0) == b"one", 10, "the first word arrives")
    first.publish(0, b"two")
    first.publish(0, b"three")
    first.flush()
    assert second.read_now(10.0)[0] == b"three"
    assert 1 not in second.read()


class Counted(DirectoryRecords):
    """How often everybody's records were read."""

    reads = 0

    def read_of(self, tasks: Iterable[int]) -> Mapping[int, bytes]:
        self.reads += 1
        return super().read_of(tasks)


def test_our_own_words_make_nobody_read_everybody(place: Path) -> None:
    """Among 256 nodes a round is due every 2 s; who says something each time reads no more."""
    counted = Counted(place)
    records = SharedRecords(counted, 0, 256)
    try:
        began = time.monotonic()
        for number in range(20):
            records.publish(0, b"%d" % number)
            records.flush()
        rounds = 1 + (time.monotonic() - began) / 2.0
        assert counted.reads <= rounds + 1
        before = counted.reads
        assert records.read_now(10.0)[0] == b"19"
        assert counted.reads >= before + 1
    finally:
        records.remove()


def test_whether_a_path_is_seen_is_told_later(
    pair: tuple[SharedRecords, SharedRecords], tmp_path: Path
) -> None:
    """The file system is asked by the thread: nobody waits for it."""
    path = str(tmp_path / "checkpoint")
    assert pair[0].sees(path) is None
    wait_until(lambda: pair[0].sees(path) is False, 10, "it is not there")
    Path(path).touch()
    wait_until(lambda: pair[0].sees(path) is True, 10, "it is there")


def test_a_directory_that_takes_nothing_is_said(place: Path) -> None:
    """By the next word; the supervisor goes on."""
    records = SharedRecords(DirectoryRecords(place / "file" / "job"), 0, 2)
    (place / "file").touch()
    records.publish(0, b"one")
    records.flush()
    with pytest.raises(OSError, match="Not a directory"):
        records.publish(0, b"two")
    records.remove()


def test_what_others_have_left_there_is_not_read(place: Path, tmp_path: Path) -> None:
    """A pipe would hold us for ever, a link leads elsewhere, a long file fills our memory."""
    records = DirectoryRecords(place)
    os.mkfifo(place / "task-0.json")
    (place / "task-1.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (place / "task-2.json").write_bytes(b"x" * (RECORD_CAP_BYTES + 1))
    (place / "task-3.json").mkdir()
    (place / "task-4.json").write_bytes(b"fine")
    assert records.read() == records.read_of(range(9)) == {4: b"fine"}


def test_a_place_that_is_not_ours_alone_is_refused(tmp_path: Path) -> None:
    """Its parent is missing, it is a file, or the folder in it is open to others."""
    task = JobTask(
        job="slurm:1.0",
        source="slurm",
        task=0,
        tasks=2,
        here=1,
        kind="node",
        coordination=str(tmp_path / "not" / "mounted"),
    )
    for number, coordination in enumerate(("not/mounted", "file", "open")):
        (tmp_path / "file").touch()
        top = tmp_path / "open" / f"wtrain-{os.getuid()}-jobs"
        top.mkdir(parents=True, exist_ok=True)
        top.chmod(0o755)
        where = JobTask(
            **{**{name: getattr(task, name) for name in task.__struct_fields__}, "task": 0}
            | {"coordination": str(tmp_path / coordination)}
        )
        with pytest.raises(WtrainError, match="cannot meet at") as refused:
            link_to(where, current(), ())
        assert refused.value.exit_code == 78, number
