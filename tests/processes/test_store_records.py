"""Records in a store that a process of the training's interpreter holds, with a stand-in for torch.

The process is the real one. tests/slow/test_nodes_store.py has it with torch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.core.builders import node_task
from tests.support import PROGRAMS, children_of, free_port, is_alive, wait_until
from watchdog_train import store_process
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.core.starting.place import StorePlace
from watchdog_train.errors import WtrainError
from watchdog_train.peers import store as peers_store
from watchdog_train.peers.shared import SharedRecords
from watchdog_train.peers.store import StoreRecords
from watchdog_train.supervisor.command import pythons_of
from watchdog_train.supervisor.joining import link_to
from watchdog_train.system import current

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="no store on Windows"),
]
PLACE = StorePlace(host="node0", port=29400)
Make = Callable[..., StoreRecords]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Records of a task; their processes end with the test."""
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS / "fake_store"))
    monkeypatch.setenv("FAKE_STORE_AT", str(tmp_path / "store"))
    made = []

    def records(task: int, call_s: float = 20.0, python: str = sys.executable) -> StoreRecords:
        made.append(StoreRecords(PLACE, [python], "job", task, 2, call_s=call_s))
        return made[-1]

    yield records
    for each in made:
        each.close()


def test_each_sees_what_the_other_says(make: Make) -> None:
    """Only the newest word, whatever is in it; of who has said nothing there is none."""
    first, second = make(0), make(1)
    assert dict(first.read_of([0, 1])) == {}
    second.publish(1, b'{"a": 1}\xff\x00')
    first.publish(0, b"one")
    first.publish(0, b"two")
    assert dict(second.read_of([0, 1])) == {0: b"two", 1: b'{"a": 1}\xff\x00'}
    assert second.problem is None
    # The store ends with the first task's process, which therefore waits for the others.
    assert (first.stays, second.stays) == (False, True)


def test_the_process_of_the_store_is_named_as_ours(make: Make) -> None:
    """Or it would pass for an orphan of the training, which came to us from a dead keeper."""
    first = make(0)
    assert first.helper_pids == frozenset()
    first.publish(0, b"here")
    assert first.helper_pids == frozenset(children_of(os.getpid()))
    first.close()
    assert first.helper_pids == frozenset()


def test_a_store_that_is_not_there_yet_is_waited_for(make: Make) -> None:
    """Said with the address; the process need not be started again."""
    second = make(1)
    with pytest.raises(OSError, match="tcp://node0:29400: The client socket has timed out"):
        second.publish(1, b"word")
    (pid,) = children_of(os.getpid())
    make(0).publish(0, b"here")
    assert dict(second.read_of([0])) == {0: b"here"}
    assert pid in children_of(os.getpid())


def test_the_store_of_somebody_else_is_none(make: Make, tmp_path: Path) -> None:
    """torchrun's own, say: it answers, and knows nothing of this job."""
    (tmp_path / "store").mkdir()
    second = make(1)
    assert dict(second.read_of([0])) == {}
    assert "not the store of this job" in str(second.problem)


@pytest.mark.slow
def test_a_call_that_hangs_ends(make: Make, tmp_path: Path) -> None:
    """The process ends itself in time; it is replaced later, and all is well again."""
    first = make(0, call_s=0.5)
    first.publish(0, b"one")
    (tmp_path / "store.hangs").touch()
    began = time.monotonic()
    with pytest.raises(OSError, match="not reached in time"):
        first.publish(0, b"two")
    assert time.monotonic() - began < peers_store.MARGIN_S + 5
    assert not children_of(os.getpid())
    with pytest.raises(OSError, match="not reached in time"):
        first.publish(0, b"three")
    assert not children_of(os.getpid())  # not at once
    (tmp_path / "store.hangs").unlink()

    def said() -> bool:
        try:
            first.publish(0, b"four")
        except OSError:
            return False
        return True

    wait_until(said, 30, "a new process has reached the store")
    assert dict(first.read_of([0])) == {0: b"four"}


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced(make: Make) -> None:
    """By the next call that may."""
    first = make(0)
    first.publish(0, b"one")
    os.kill(children_of(os.getpid())[0], signal.SIGKILL)
    assert dict(first.read_of([0])) == {}
    wait_until(lambda: first.read_of([0]) is not None and not first.problem, 30, "it is there")


def test_no_python_with_torch_is_said_once_for_all(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried a second time, and the start of a run is refused."""
    monkeypatch.setenv("FAKE_STORE", "no torch")
    first = make(0)
    with pytest.raises(OSError, match="no Python with torch"):
        first.publish(0, b"one")
    assert f"{sys.executable}: No module named 'torch'" in str(first.cannot)
    with pytest.raises(OSError, match="no Python with torch"):
        first.publish(0, b"one")
    assert "/no/such/python: No such file" in _cannot(make(1, python="/no/such/python"))
    with pytest.raises(WtrainError, match="no Python with torch") as refused:
        link_to(task("tcp://node0:29400"), current(), (), is_new=True)
    assert refused.value.exit_code == 78


def _cannot(records: StoreRecords) -> str:
    records.read_of([0])
    return str(records.cannot)


@pytest.mark.torch
def test_it_listens_at_its_address_alone() -> None:
    """With torch itself, which would listen at every address of the machine."""
    first = StoreRecords(
        StorePlace(host="localhost", port=free_port()), [sys.executable], "job", 0, 2
    )
    second = StoreRecords(first.place, [sys.executable], "job", 1, 2)
    try:
        first.publish(0, b"one")
        assert dict(second.read_of([0])) == {0: b"one"}
        (pid,) = first.helper_pids
        found = psutil.Process(pid).net_connections("inet")
        assert {one.laddr.ip for one in found if one.status == "LISTEN"} == {"127.0.0.1"}
    finally:
        second.close()
        first.close()


@pytest.mark.parametrize(
    "resolves_to", [["127.0.1.1"], ["127.0.0.1", "192.0.2.1"], ["192.0.2.1"], []]
)
def test_a_name_that_others_understand_otherwise_is_left_to_torch(
    resolves_to: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several addresses, none of this machine, none at all, or the loopback for its own name."""
    port = free_port()
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in resolves_to]

    def resolve(*_: object) -> list[object]:
        if not rows:
            raise socket.gaierror
        return list(rows)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert store_process._listening("node0", port) == {}


def task(coordination: str, number: int = 1) -> JobTask:
    return node_task(number, coordination)


def test_what_is_no_address_is_refused() -> None:
    """Before anything is made, and with what would be one."""
    with pytest.raises(WtrainError, match="port 80 is none of 1024 to 65535") as refused:
        link_to(task("tcp://node0:80"), current(), (), is_new=True)
    assert refused.value.exit_code == 78
    assert "tcp://HOST:PORT" in str(refused.value.hint)


def test_the_process_ends_with_its_supervisor(make: Make, tmp_path: Path) -> None:
    """Also when that is killed."""
    make(0).close()
    program = (
        "import sys, time\n"
        "from watchdog_train.core.starting.place import StorePlace\n"
        "from watchdog_train.peers.store import StoreRecords\n"
        "records = StoreRecords(StorePlace(host='n', port=2000), [sys.executable], 'job', 0, 2)\n"
        "records.publish(0, b'one')\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"ready\n"
    (pid,) = children_of(supervisor.pid)
    supervisor.kill()
    supervisor.wait(10)
    supervisor.stdout.close()
    wait_until(lambda: not is_alive(pid), 10, "the process has ended")


def test_a_thread_asks_it(make: Make) -> None:
    """As for a directory: the loop gets what was seen last, and waits for nothing."""
    first, second = SharedRecords(make(0), 0, 2), SharedRecords(make(1), 1, 2)
    first.publish(0, b"one")
    wait_until(lambda: second.read().get(0) == b"one", 30, "the word arrives")
    assert not first.stays
    second.close()
    first.remove()
    assert not children_of(os.getpid())


def test_the_interpreter_of_a_command_is_found(tmp_path: Path) -> None:
    """By its name, by the first line of a script, or beside that; ours is the last."""
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    for name, first in (
        ("torchrun", f"#!{python}"),
        ("long", "#!/bin/sh"),
        ("binary", "\x7fELF"),
    ):
        (tmp_path / name).write_text(f"{first}\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    wanted = str(python)
    assert pythons_of([wanted, "train.py"])[0] == wanted
    assert pythons_of([str(tmp_path / "torchrun"), "--nnodes=2", "train.py"])[0] == wanted
    assert pythons_of([str(tmp_path / "long"), "train.py"])[0] == wanted
    assert wanted not in pythons_of([str(tmp_path / "binary"), "--", "x"])
    assert pythons_of(["no-such-program"])[-1] == sys.executable
