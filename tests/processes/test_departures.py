"""How ranks ended that are not our children: real processes, and slots as they left them."""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.core import builders as b
from tests.support import children_of, wait_until, write_slot
from watchdog_train.client import layout
from watchdog_train.core.model import MemberSample, ProcessId, RankEnd
from watchdog_train.store.slots import LastWords
from watchdog_train.supervisor.hands.exits import Departures
from watchdog_train.system import current
from watchdog_train.system.portable import PortableSystem

TELLS_OF_THE_REAPED = tuple(map(int, platform.release().split(".")[:2])) >= (6, 15)

PARENT = """
import ctypes, os, signal, sys, threading
child = os.fork()
if child == 0 and sys.argv[1] == "thread":
    threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(7))).start()
    ctypes.CDLL(None).pthread_exit(0)
if child == 0:
    sys.stdin.readline()
    os._exit(7) if sys.argv[1] == "exit" else os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "reaps":
    os.waitpid(child, 0)
signal.pause()
"""


class Job:
    """A launcher and its one rank, which ends when it is told to."""

    def __init__(self, how: str, parent: str) -> None:
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", PARENT, how, parent], stdin=subprocess.PIPE
        )
        (self.pid,) = wait_until(lambda: children_of(self.launcher.pid), 20, "the rank")
        found = current().identity(self.pid)
        assert found is not None
        self.identity: ProcessId = found

    def end_rank(self) -> None:
        self.launcher.stdin.write(b"\n")
        self.launcher.stdin.flush()
        wait_until(lambda: not current().is_alive(self.identity), 20, "the rank has ended")

    def rank(self) -> MemberSample:
        """The rank as the tree sees it now: alive, or a zombie."""
        sample = b.rank(self.pid, 1, words=25, world_size=2)
        alive = current().is_alive(self.identity)
        member = msgspec.structs.replace(sample.member, start=self.identity.start)
        return msgspec.structs.replace(sample, member=member, state="S" if alive else "Z")


Start = Callable[[str, str], Job]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Job] = []

    def started(how: str, parent: str) -> Job:
        made.append(Job(how, parent))
        return made[-1]

    yield started
    for job in made:
        job.launcher.kill()
        job.launcher.wait(10)
        job.launcher.stdin.close()


def watching() -> Departures:
    return Departures(current(), LastWords(None))


def slot_file(directory: Path, job: Job) -> Path:
    """Of a rank that trains."""
    return write_slot(
        directory, job.pid, W_START=job.identity.start, W_ROLE=layout.ROLE_RANK, W_RANK=2,
        W_WORLD_SIZE=2, W_OPTIMIZER_STEPS=25, W_PHASE=layout.PHASE_TRAIN,
    )  # fmt: skip


@pytest.mark.parametrize(("how", "code", "number"), [("exit", 7, None), ("kill", None, 9)])
@pytest.mark.parametrize("parent", ["reaps", "sleeps"])
def test_the_kernel_tells_others_how_it_ended(
    start: Start, how: str, code: int | None, number: int | None, parent: str
) -> None:
    """By the zombie's line, or, once its parent has asked, by a descriptor opened before."""
    job = start(how, parent)
    departures = watching()
    assert departures.look((job.rank(),), 1.0) == ()
    job.end_rank()
    gone = parent == "reaps"
    if gone:
        wait_until(lambda: current().identity(job.pid) is None, 20, "it is reaped")
    (end,) = departures.look(() if gone else (job.rank(),), 2.0)
    if gone and not TELLS_OF_THE_REAPED:
        code = number = None
    assert (end.rank, end.world_size, end.step, end.phase) == (1, 2, 25, "train")
    assert (end.code, end.signal, end.said, end.at) == (code, number, None, 2.0)
    assert end.unnoticed is not gone
    # Its parent asks at last, and nothing of what was known is lost.
    (later,) = departures.look((), 3.0)
    assert (later.code, later.signal, later.at, later.unnoticed) == (code, number, 2.0, False)
    departures.forget()
    assert departures.look((), 4.0) == ()


@pytest.mark.parametrize(
    ("word", "age", "said", "step"),
    [
        (0, 0, None, 27),
        (layout.EXIT_QUIET, 0, "quiet", 27),
        (layout.EXIT_FAILED, 0, "exception", 27),
        (layout.EXIT_FAILED, 1, None, 25),  # of an earlier process with this pid
    ],
)
def test_its_own_last_words_count(
    start: Start, tmp_path: Path, word: int, age: int, said: str | None, step: int
) -> None:
    """What a rank wrote into its slot after the last look is heard, though the file is gone."""
    job = start("exit", "reaps")
    path = slot_file(tmp_path, job)
    words = LastWords(tmp_path)
    departures = Departures(PortableSystem(), words)
    words.follow([job.pid])
    departures.look((job.rank(),), 1.0)
    with path.open("r+b") as file:
        start = job.identity.start - age
        for position, value in (
            (layout.W_OPTIMIZER_STEPS, 27), (layout.W_EXIT, word), (layout.W_START, start),
        ):  # fmt: skip
            file.seek(8 * position)
            file.write(struct.pack("=Q", value))
    path.unlink()
    job.end_rank()
    (end,) = departures.look((), 2.0)
    assert (end.said, end.step, end.code, end.signal) == (said, step, None, None)
    words.forget()


def test_a_new_supervisor_knows_what_the_old_one_has_recorded() -> None:
    """An end that was seen once stays one; whom nobody saw alive is no rank that ended."""
    known = RankEnd(pid=11, start=1011, rank=1, world_size=2, step=5, phase="train", at=3.0, code=1)
    departures = watching()
    departures.seed((known,))
    assert departures.look((b.rank(12, 2, state="Z"),), 9.0) == (known,)


@pytest.mark.parametrize("code", [0, 1])
def test_a_helper_that_may_have_failed_is_kept_with_its_script(tmp_path: Path, code: int) -> None:
    """Its traceback is in the output; one that is seen to end with 0 has none."""
    path = tmp_path / "codec.py"
    path.write_text(f"input()\nraise SystemExit({code})\n")
    helper = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE)
    identity = current().identity(helper.pid)
    sample = b.rank(helper.pid, 0)
    member = msgspec.structs.replace(sample.member, role="other", start=identity.start)
    sample = msgspec.structs.replace(sample, member=member, slot=None)
    departures = watching()
    arguments = wait_until(lambda: current().command_line(helper.pid), 20, "its exec")
    assert str(path) in arguments
    departures.look((sample,), 1.0)
    helper.communicate(b"\n", timeout=20)
    departures.look((), 2.0)
    kept = [str(path)] if code or not TELLS_OF_THE_REAPED else []
    assert [end.script for end in departures.vanished] == kept


def test_no_descriptor_is_left_open(start: Start) -> None:
    """Each rank costs one while it lives."""
    job = start("exit", "sleeps")
    before = len(os.listdir("/proc/self/fd"))
    departures = watching()
    departures.look((job.rank(),), 1.0)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    job.end_rank()
    departures.look((job.rank(),), 2.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_process_of_that_pid_is_not_watched(start: Start) -> None:
    """A watch is of one very process."""
    job = start("exit", "sleeps")
    stranger = ProcessId(job.pid, job.identity.start + 1)
    assert current().watch_exit(stranger) is None
    watch = current().watch_exit(job.identity)
    assert watch.status() is None
    os.kill(job.pid, signal.SIGTERM)
    wait_until(lambda: watch.status() == -signal.SIGTERM, 20, "its end is told")
    watch.close()
    watch.close()


@pytest.mark.needs_exit_status_of_others
def test_a_zombie_whose_other_thread_runs_has_not_ended(start: Start) -> None:
    """Each rank that is killed is one for a moment; asked then, its status is unknown for ever."""
    job = start("thread", "keeps")
    departures = watching()
    departures.look([job.rank()], 1.0)
    stat = Path(f"/proc/{job.pid}/stat")
    wait_until(lambda: ") Z " in stat.read_text(), 20, "the main thread has left")
    zombie = msgspec.structs.replace(job.rank(), state="Z")
    assert departures.look([zombie], 2.0) == ()
    job.end_rank()
    (end,) = departures.look([job.rank()], 3.0)
    assert (end.code, end.signal) == (7, None)
