"""Ranks that write to streams of their own: told apart, bounded, and nothing changed for all."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training
from tests.processes.keeping import PYTHON, record, start_keeper_process, write_orders
from tests.support import wait_until
from watchdog_train.client import layout
from watchdog_train.keeper.ranks import GAP
from watchdog_train.supervisor.hands.streams import Ends
from watchdog_train.supervisor.terminal import Terminal

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a launcher reaches the streams by /proc"
)
PIPES = Terminal()
TWO_PIPES = Terminal(same_stream=False)
TERMINAL = Terminal(stdout_is_terminal=True, stderr_is_terminal=True, rows=33, columns=111)
BEGIN = (
    f"import json, os\ntold = json.loads(os.environ[{layout.ENV_RANK_STREAMS!r}])\n"
    "places = told['ranks']\n"
)


@contextlib.contextmanager
def kept(
    folder: Path, program: str, terminal: Terminal = PIPES, ranks: int = 2, cap: int = 1 << 20
) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper with streams for ranks; its training is a Python that acts as their launcher."""
    ends = Ends(terminal, ranks)
    orders = write_orders(
        folder, [PYTHON, "-c", BEGIN + program], cap_bytes=cap, **ends.orders(2 * cap)
    )
    try:
        with start_keeper_process(orders, pass_fds=ends.for_keeper()) as process:
            ends.close_writes()
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        ends.close_reads()


def ended(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(20) == 0


def keep_to_the_end(*what: Any, **how: Any) -> None:
    with kept(*what, **how) as process:
        ended(process)


def rank_text(folder: Path, rank: int, stream: str = "output") -> str:
    return (folder / f"ranks/{rank}/{stream}.log").read_text()


def test_ranks_are_told_apart(tmp_path: Path) -> None:
    """A rank's words are in its own file and in the file of all; the launcher's in the latter."""
    program = (
        "print('launcher', flush=True)\n"
        "files = [open(place['output'], 'w') for place in places]\n"
        "for step in range(3):\n"
        "    for rank, file in enumerate(files): print('rank', rank, step, file=file, flush=True)\n"
    )
    keep_to_the_end(tmp_path, program)
    assert rank_text(tmp_path, 0) == "rank 0 0\nrank 0 1\nrank 0 2\n"
    assert rank_text(tmp_path, 1) == "rank 1 0\nrank 1 1\nrank 1 2\n"
    lines = (tmp_path / "output.log").read_text().splitlines()
    assert sorted(lines) == sorted(
        ["launcher", *rank_text(tmp_path, 0).splitlines(), *rank_text(tmp_path, 1).splitlines()]
    )
    assert record(tmp_path, "exit.json")["dropped_bytes"] == 0


@pytest.mark.parametrize("terminal", [PIPES, TWO_PIPES, TERMINAL])
def test_a_launcher_knows_whether_its_words_come_to_us(tmp_path: Path, terminal: Terminal) -> None:
    """Behind a pipe of the user's own (`torchrun ... | tee log`) its ranks must write there."""
    program = (
        "from watchdog_train.client.hooks.torchrun import _writes_to_us\n"
        "import sys\n"
        "before = _writes_to_us(told['own'])\n"
        "os.dup2(os.pipe()[1], 2)\n"
        "after = _writes_to_us(told['own'])\n"
        "print(before, after, flush=True)\n"
    )
    keep_to_the_end(tmp_path, program, terminal)
    (path,) = [one for one in tmp_path.glob("*.log") if one.read_text().strip()]
    assert path.read_text().split() == ["True", "False"]


def test_a_rank_that_says_nothing_has_no_file(tmp_path: Path) -> None:
    """No file, and the keeper ends all the same."""
    program = "open(places[1]['output'], 'w').write('x')\n"
    keep_to_the_end(tmp_path, program, ranks=8)
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["1"]


def test_two_streams_stay_two(tmp_path: Path) -> None:
    """Where stdout and stderr part, they do so for each rank."""
    program = (
        "open(places[0]['stdout'], 'w').write('out\\n')\n"
        "open(places[0]['stderr'], 'w').write('err\\n')\n"
    )
    keep_to_the_end(tmp_path, program, TWO_PIPES)
    assert rank_text(tmp_path, 0, "stdout") == (tmp_path / "stdout.log").read_text() == "out\n"
    assert rank_text(tmp_path, 0, "stderr") == (tmp_path / "stderr.log").read_text() == "err\n"


def test_a_rank_sees_the_terminal_of_all(tmp_path: Path) -> None:
    """A terminal of the same size, whose newlines stay what they are."""
    program = (
        "fd = os.open(places[1]['output'], os.O_RDWR | os.O_NOCTTY)\n"
        "size = os.get_terminal_size(fd)\n"
        "os.write(fd, b'%d %d %d\\n' % (os.isatty(fd), size.lines, size.columns))\n"
    )
    keep_to_the_end(tmp_path, program, TERMINAL)
    assert rank_text(tmp_path, 1) == "1 33 111\n"
    assert (tmp_path / "output.log").read_text() == "1 33 111\n"


def test_a_ranks_file_keeps_the_newest_within_its_cap(tmp_path: Path) -> None:
    """The file of a rank has its own share of the cap; the file of all has its whole one."""
    lines = 60_000
    program = (
        "file = open(places[0]['output'], 'w')\n"
        f"for number in range({lines}): print(number, file=file)\n"
    )
    keep_to_the_end(tmp_path, program, cap=128 * 1024)
    newest, older = tmp_path / "ranks/0/output.log", tmp_path / "ranks/0/output.log.1"
    text = older.read_bytes() + newest.read_bytes()
    assert 64 * 1024 <= len(text) <= 128 * 1024
    numbers = [int(line) for line in text.partition(b"\n")[2].splitlines()]
    assert numbers == list(range(lines - len(numbers), lines))


def test_a_gap_in_a_copy_is_said(tmp_path: Path) -> None:
    """While a rank's file cannot be written nothing waits; later the file says what it lacks."""
    in_the_way = tmp_path / "ranks" / "0"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    os.mkfifo(tmp_path / "gate")
    program = (
        "files = [open(place['output'], 'w') for place in places]\n"
        "print('lost here', file=files[0], flush=True)\n"
        "print('after it', file=files[1], flush=True)\n"
        "open('gate').read()\n"
        "print('here again', file=files[0], flush=True)\n"
    )
    with kept(tmp_path, program) as process:
        # Copies are written in their order: once the second is there, the first was given up.
        later = tmp_path / "ranks/1/output.log"
        wait_until(lambda: later.exists() and later.read_text() == "after it\n", 10, "it is copied")
        in_the_way.unlink()
        (tmp_path / "gate").write_text("")
        ended(process)
    assert (tmp_path / "output.log").read_text() == "lost here\nafter it\nhere again\n"
    assert rank_text(tmp_path, 0) == (GAP % len("lost here\n")).decode() + "here again\n"


def test_streams_live_as_long_as_their_last_writer(tmp_path: Path) -> None:
    """A rank that outlives its launcher is still heard; then the keeper ends."""
    os.mkfifo(tmp_path / "gate")
    program = (
        "import subprocess\n"
        "file = open(places[0]['output'], 'w')\n"
        "subprocess.Popen(['sh', '-c', 'read _ <gate; echo late'], stdout=file,"
        " start_new_session=True)\n"
    )
    with kept(tmp_path, program) as process:
        assert record(tmp_path, "exit.json")["code"] == 0
        assert process.poll() is None
        (tmp_path / "gate").write_text("\n")
        ended(process)
    assert rank_text(tmp_path, 0) == "late\n"
    assert (tmp_path / "output.log").read_text() == "late\n"


@pytest.mark.parametrize("ranks", [0, 3])
def test_what_the_orders_name(ranks: int) -> None:
    """Each rank has a share of the cap; without ranks there is nothing to announce."""
    ends = Ends(PIPES, ranks)
    orders = ends.orders(900_000)
    ends.close_writes()
    ends.close_reads()
    if not ranks:
        assert orders["ranks"] is None
        return
    assert orders["ranks"]["cap_bytes"] == 300_000
    assert [one["output"]["path"] for one in orders["ranks"]["streams"]] == [
        f"ranks/{rank}/output.log" for rank in range(3)
    ]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ranks_share_when_there_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor pseudo-terminals run out because of ranks, and none is left open."""
    before = open_files()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, limits[1]))
    try:
        ends = Ends(PIPES, 64)
        named = len(ends.orders(1)["ranks"]["streams"])
        left = before + 100 - open_files()
        ends.close_writes()
        ends.close_reads()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert named > 5
    assert left > 50
    real, made = os.openpty, iter(range(4))
    monkeypatch.setattr(os, "openpty", lambda: real() if next(made, None) is not None else fail())
    ends = Ends(TERMINAL, 8)
    assert len(ends.orders(1)["ranks"]["streams"]) == 3
    ends.close_writes()
    ends.close_reads()
    assert open_files() == before


def fail() -> tuple[int, int]:
    raise OSError("out of pty devices")


@pytest.mark.parametrize(("taken", "ranks"), [(1000, range(1, 16)), (1030, range(1))])
def test_files_beyond_the_reach_of_select_are_not_used(taken: int, ranks: range) -> None:
    """The keeper waits for all streams at once with select(), which has an end."""
    before = open_files()
    high = [os.dup(0)]
    try:
        while high[-1] < taken:
            high.append(os.dup(0))
        os.close(high.pop(0))
        ends = Ends(PIPES, 16)
        orders = ends.orders(1)["ranks"] or {"streams": []}
        assert len(orders["streams"]) in ranks
        assert all(max(rank["output"]["fds"]) < 1024 for rank in orders["streams"])
        ends.close_writes()
        ends.close_reads()
    finally:
        for fd in high:
            os.close(fd)
    assert open_files() == before


# -- the hook in the launcher --------------------------------------------------------------------

HANDLERS = """
import json, os, sys
read, write = os.pipe()
places = [{"output": f"/proc/self/fd/{write}"}, {"output": "/no/such/place"}]
def same(descriptor):
    found = os.fstat(descriptor)
    return [found.st_dev, found.st_ino]
own = {"stdout": same(1), "stderr": same(2)}
told = {
    "PLACES": json.dumps({"ranks": places, "own": own}),
    "PIPED": json.dumps({"ranks": places, "own": {**own, "stdout": same(read)}}),
}
os.environ["WTRAIN_RANK_STREAMS"] = told.get(sys.argv[1], sys.argv[1])
import torch.distributed.elastic.multiprocessing.api as api
def say(rank, stdout=None):
    handler = api.SubprocessHandler(
        "sh", ("-c", f"echo rank{rank}; echo err{rank} >&2"), {"LOCAL_RANK": str(rank)},
        stdout, None, rank, None)
    return handler.proc.wait()
codes = [say(0), say(1), say(2), say(0, "own.txt")]
os.close(write)
with open(read) as file: heard = file.read()
print(json.dumps({"codes": codes, "heard": heard, "own": open("own.txt").read()}))
"""


@pytest.mark.parametrize(
    ("announced", "env", "heard", "hook"),
    [
        ("PLACES", {}, "rank0\nerr0\n", "armed"),
        pytest.param("not JSON", {}, "", "failed", marks=pytest.mark.slow),
        pytest.param("", {}, "", "armed", marks=pytest.mark.slow),
        pytest.param("PIPED", {}, "", "armed", marks=pytest.mark.slow),
        # Ranks that a rank starts must not write into the files of the outer ones.
        pytest.param("PLACES", {"LOCAL_RANK": "0"}, "", "armed", marks=pytest.mark.slow),
    ],
)
def test_the_launcher_gives_ranks_their_streams(
    tmp_path: Path, announced: str, env: dict[str, str], heard: str, hook: str
) -> None:
    """A place that is not there, a rank too many and what the user redirects stay as they are."""
    training = Training(tmp_path)
    done = training.run(HANDLERS, announced, env=env)
    assert done.returncode == 0, done.stderr
    *shared, last = done.stdout.splitlines()
    told: dict[str, Any] = json.loads(last)
    assert told == {"codes": [0, 0, 0, 0], "heard": heard, "own": "rank0\n"}
    assert shared == [*([] if heard else ["rank0"]), "rank1", "rank2"]
    assert training.note()["hooks"]["torchrun"].startswith(hook)
