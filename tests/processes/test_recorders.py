"""The Flight Recorder of real ranks on gloo: fetched from torch's own server, judged, kept."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.processes.collecting import request_for
from tests.support import free_port, wait_until
from watchdog_train.client import layout
from watchdog_train.core.model import Member
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.recorders import fetch

RANKS = """
import os, sys, time
import torch
import torch.distributed as dist

def step():
    dist.all_reduce(torch.ones(3))

dist.init_process_group("gloo")
step()
print("ready", flush=True)
what, rank = sys.argv[1], dist.get_rank()
if what == "steps":
    while True:
        step()
        time.sleep(0.01)
if what == "left" and rank == 1:
    time.sleep(600)
if what == "held" and rank == 1:
    import ctypes
    ctypes.PyDLL(None).sleep(600)
if what == "ends":
    if rank == 1:
        sys.exit(3)
    os._exit(0)
step()
"""


NONSENSE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n{" + b"9" * 99)
"""


class Job:
    """Two ranks of one job, as a supervisor would have started them."""

    def __init__(self, root: Path, what: str, **extra: str) -> None:
        self.training = Training(root)
        port = str(free_port())
        env = {
            "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "TORCH_FR_BUFFER_SIZE": "2000", **extra,
        }  # fmt: skip
        self.ranks = [
            self.training.start(RANKS, arguments=(what,), env={**env, "RANK": str(rank)})
            for rank in (0, 1)
        ]

    def socket(self, rank: int) -> str:
        return str(self.training.slot_dir / f"{self.ranks[rank].pid}{layout.SOCKET_SUFFIX}")

    def enqueued(self, rank: int) -> int:
        data = fetch(self.socket(rank)) or {"pg_status": {}}
        status = data["pg_status"].get("0", {})
        return int(status.get("last_enqueued_collective", -1))

    def collect(self, tmp_path: Path):
        members = tuple(
            Member(pid=process.pid, start=0, role="rank", rank=rank)
            for rank, process in enumerate(self.ranks)
        )
        return collect(request_for(tmp_path, members, slot_dir=str(self.training.slot_dir)))

    def end(self) -> list[tuple[str, str]]:
        for rank in self.ranks:
            rank.kill()
        return [rank.communicate(timeout=20) for rank in self.ranks]


@pytest.fixture
def job(tmp_path):
    started = []

    def start(what, **extra):
        found = Job(tmp_path, what, **extra)
        started.append(found)
        for rank in found.ranks:
            assert rank.stdout.readline() == "ready\n"
        return found

    yield start
    for one in started:
        one.end()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["left", "held"])
def test_the_rank_that_fell_behind_is_named_by_its_numbers(tmp_path, job, what):
    """Rank 1 left the loop, or sits in C with the interpreter lock: its server answers."""
    ranks = job(what)
    wait_until(lambda: ranks.enqueued(0) == 2, 20, "rank 0 waits in its second all-reduce")
    result = ranks.collect(tmp_path)
    assert result.explanation.root.who.rank == 1
    (waits,) = [one.how for one in result.explanation.victims]
    assert (waits.op, waits.seq, waits.absent) == ("all_reduce", 2, ((1, 1),))
    kept = json.loads((tmp_path / "out" / "flight-recorder" / "rank1.json").read_text())
    assert kept["entries"][-1]["collective_seq_id"] == 1
    assert [text for _, text in ranks.end()] == ["", ""], "nothing is printed by us"


@pytest.mark.slow
def test_ranks_that_go_on_are_not_accused(tmp_path, job):
    """A healthy job is a collective apart at any moment; that is no evidence."""
    ranks = job("steps")
    result = ranks.collect(tmp_path)
    # On a machine with far more to do than cores it may say that instead.
    assert result.explanation.family in (None, "healthy-slow", "cpu-thread-contention")
    assert result.explanation.kind == "healthy"
    assert result.patience.row == "at-work"
    assert (tmp_path / "out" / "flight-recorder" / "rank0.json").is_file()


@pytest.mark.slow
def test_the_server_changes_neither_exit_nor_output(job):
    """Exit codes and stderr are the script's own, and the socket goes with the slot."""
    ranks = job("ends")
    ends = [rank.communicate(timeout=60) for rank in ranks.ranks]
    assert [rank.returncode for rank in ranks.ranks] == [0, 3]
    assert [text for _, text in ends] == ["", ""]
    assert not os.path.exists(ranks.socket(1))


@pytest.mark.slow
def test_the_server_can_be_left_out(job):
    """A variable of the user's keeps it away; stacks still come."""
    ranks = job("left", **{layout.ENV_NO_WORKER_SERVER: "1"})
    assert not list(ranks.training.slot_dir.glob(f"*{layout.SOCKET_SUFFIX}"))


def test_a_socket_that_never_answers_costs_its_time_and_no_more(tmp_path):
    """A forked child may hold the socket of a rank that has died."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert fetch(path) is None, "nobody listens"
    path = str(tmp_path / "t")
    with subprocess.Popen(
        [sys.executable, "-c", NONSENSE, path], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert fetch(path) is None, "what it says is no dump"
