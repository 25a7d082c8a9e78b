"""The lock of a run: one supervisor at a time, and free the moment its holder is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.errors import EXIT_REFUSED, WtrainError
from watchdog_train.store.lock import Holder, RunLock, is_held, read_holder
from watchdog_train.system import file_systems

HOLD = """
import os, sys
from pathlib import Path
from watchdog_train.store.lock import Holder, RunLock
lock = RunLock(Path(sys.argv[1]), Holder(pid=os.getpid(), start=5, host="there", boot_id="b"))
lock.acquire()
print("ready", flush=True)
sys.stdin.read()
lock.release()
"""
ME = Holder(pid=os.getpid(), start=1, host="here")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train-20261121-120000-0000").mkdir()
    return tmp_path / "train-20261121-120000-0000" / "lock"


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.communicate(timeout=20)


@contextmanager
def held(path: Path) -> Iterator[RunLock]:
    lock = RunLock(path, ME)
    lock.acquire()
    yield lock
    lock.release()


def test_two_supervisors_are_refused(path: Path) -> None:
    assert is_held(path) is False
    with holding(path) as process:
        assert is_held(path) is True
        with pytest.raises(WtrainError) as caught:
            RunLock(path, ME).acquire()
        assert caught.value.reference == "run-held"
        assert caught.value.exit_code == EXIT_REFUSED
        assert f"pid {process.pid} on there" in caught.value.message
        expected = Holder(pid=process.pid, start=5, host="there", boot_id="b")
        assert read_holder(path) == expected
    assert is_held(path) is False
    assert read_holder(path) is None
    with held(path) as lock:
        assert is_held(path) is True
    lock.release()


def test_a_killed_holder_leaves_the_lock_free(path: Path) -> None:
    with holding(path) as process:
        process.kill()
    assert is_held(path) is False
    who = read_holder(path)
    assert who.pid == process.pid
    with held(path):
        assert read_holder(path) == ME


def test_children_do_not_inherit_the_lock(path: Path) -> None:
    """A child that outlives its supervisor does not keep the run locked."""
    lock = RunLock(path, ME)
    lock.acquire()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lock.release()
        assert is_held(path) is False
    finally:
        child.communicate(b"\n", timeout=20)


def test_a_look_at_the_lock_does_not_refuse_a_supervisor(path: Path) -> None:
    """Readers that ask whether the lock is held never make acquire() fail."""
    code = (
        "import sys; from pathlib import Path; from watchdog_train.store.lock import is_held\n"
        "path = Path(sys.argv[1]); print('ready', flush=True)\n"
        "for _ in range(3000): is_held(path)\n"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    asking.stdout.readline()
    for _ in range(100):
        with held(path):
            pass
    asking.communicate(timeout=60)


def test_a_file_system_without_locks_gets_one_on_local_memory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where flock is not supported, two supervisors of one host still exclude each other."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(file_systems, "runtime_bases", lambda: (memory,))
    flock = fcntl.flock

    def without_locks(fd: int, operation: int) -> None:
        if path.exists() and os.path.sameopenfile(fd, probe):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(fd, operation)

    path.touch()
    probe = os.open(path, os.O_RDONLY)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    first = RunLock(path, ME)
    first.acquire()
    assert is_held(path) is True
    with pytest.raises(WtrainError, match="supervised already"):
        RunLock(path, ME).acquire()
    first.release()
    assert is_held(path) is False
    os.close(probe)


def test_an_unwritable_place_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(WtrainError) as caught:
        RunLock(tmp_path / "missing" / "lock", ME).acquire()
    assert caught.value.reference == "run-unlockable"


def test_the_holder_file_is_not_trusted(path: Path) -> None:
    with holding(path):
        (path.parent / "lock.json").write_bytes(b"\xff" * 9000)
        with pytest.raises(WtrainError, match="by another process"):
            RunLock(path, ME).acquire()
    wait_until(lambda: is_held(path) is False, 5.0, "the lock is free")
