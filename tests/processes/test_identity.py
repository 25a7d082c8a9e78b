"""The cases of tests/properties/test_identity.py with real processes, and pids that come again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.properties.process_table import SCOPE, Kind, Step, Story
from tests.properties.test_identity import CASES, SEQUENCES, check_end, steps
from tests.support import PROGRAMS, wait_until
from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.model import ProcessId
from watchdog_train.evidence.process_look import look
from watchdog_train.system import proc
from watchdog_train.system.linux import LinuxSystem
from watchdog_train.system.portable import PortableSystem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forces pids through /proc")

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
NOBODY = 65534
FAST = ("a child of a dead parent", "a pid comes again, as another user")


class RealTable:
    """Processes of the machine that do as they are told; see programs/told_to_fork.py."""

    def __init__(self, folder: Path, system: Any) -> None:
        self.system = system
        self.token = os.urandom(16).hex()
        self._linux = LinuxSystem()
        self._folder = folder
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._answers.bind(str(folder / "answers"))
        self._answers.settimeout(20)
        self._sockets: dict[ProcessId, str] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        environment = {**os.environ, layout.ENV_TOKEN: self.token, layout.ENV_SCOPE: SCOPE}
        first = str(folder / "0")
        program = str(PROGRAMS / "told_to_fork.py")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, first, str(folder / "answers"), "keeper"],
            env=environment,
            start_new_session=True,
        )
        self.started.append(process)
        self.keeper = self._identity(process.pid)
        self.root = self._hear(first)

    def _identity(self, pid: int) -> ProcessId:
        who = self._linux.identity(pid)
        assert who is not None
        return who

    def _hear(self, path: str) -> ProcessId:
        who = self._identity(int(self._answers.recv(100)))
        self._sockets[who] = path
        return who

    def _tell(self, who: ProcessId, words: str) -> None:
        self._answers.sendto(words.encode(), self._sockets[who])

    def spawn(self, parent: ProcessId, kind: Kind) -> ProcessId:
        path = str(self._folder / str(len(self._sockets)))
        self._tell(parent, f"fork {path} {kind}")
        return self._hear(path)

    def end(self, who: ProcessId) -> None:
        self._tell(who, "end")
        wait_until(lambda: not self.alive(who), 10, "it has ended as it was told")

    def bystander(self, how: str, pid: int | None = None) -> ProcessId | None:
        if how == "spooled" or (how == "other-user" and os.getuid() != 0):
            return None
        env = dict(os.environ)
        if how != "plain":
            env[layout.ENV_TOKEN] = self.token
            env[layout.ENV_SCOPE] = SCOPE if how == "other-user" else "host/boot/77"
        user = NOBODY if how == "other-user" else None
        for _ in range(1 if pid is None else 40):
            if pid is not None and not _next_pid(pid):
                pytest.skip("ns_last_pid cannot be written: no pid can be made to come again")
            process = subprocess.Popen(["sleep", "600"], env=env, user=user, start_new_session=True)
            self.started.append(process)
            if pid is None:
                return self._identity(process.pid)
            # Not within the same 10 ms, in which a start time does not tell the two apart.
            if process.pid == pid and (who := self._identity(pid)) not in self._sockets:
                return who
            process.kill()
            process.wait(10)
        return None  # others were faster each time

    def own_children(self) -> frozenset[int]:
        return frozenset(process.pid for process in self.started) - {self.keeper.pid}

    def alive(self, who: ProcessId) -> bool:
        return bool(self._linux.is_alive(who))

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))
        for process in self.started:
            process.poll()

    def now(self) -> float:
        return time.monotonic()

    def close(self, ours: list[ProcessId]) -> None:
        """After a failed test, too."""
        for who in (*ours, self.keeper):
            self._linux.send_signal(who, 9)
        for process in self.started:
            process.kill()
            process.wait(10)
        self._answers.close()


def _next_pid(pid: int) -> bool:
    try:
        LAST_PID.write_text(str(pid - 1))
    except OSError:
        return False
    return True


def play(played: list[Step], sequence: e.KillSequence, system: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        table = RealTable(Path(folder), system)
        story = Story(table)
        try:
            story.play(played)
            check_end(story, story.bring_down(sequence))
        finally:
            table.close(story.ours)


@pytest.fixture(params=[LinuxSystem, PortableSystem])
def system(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES]
)
def test_named_cases(name: str, system: Any) -> None:
    """What the simulated table told is what the kernel does."""
    play(CASES[name], "hang", system)


@pytest.mark.slow
@pytest.mark.timeout(280)
@given(played=steps)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
def test_whatever_processes_do(played: list[Step]) -> None:
    """The same stories, with real ones; each sequence in turn."""
    play(played, SEQUENCES[len(played) % len(SEQUENCES)], LinuxSystem())


def test_a_signal_to_a_reused_pid_reaches_nobody(system: Any) -> None:
    """The pid is there, and belongs to somebody else: nothing is sent."""
    with tempfile.TemporaryDirectory() as folder:
        table = RealTable(Path(folder), system)
        story = Story(table)
        try:
            story.play([Step("spawn"), Step("look"), Step("end", 1)])
            gone = story.ours[1]
            assert system.send_signal(gone, 9) == "gone"
            other = table.bystander("plain", gone.pid)
            if other is None:
                pytest.skip("the pid was taken by somebody else each time")
            assert system.send_signal(gone, 9) == "not-ours"
            assert system.send_signal_to_group(gone, 9) in ("not-ours", "gone")
            assert table.alive(other)
        finally:
            table.close(story.ours)


def test_without_proc_a_look_is_of_the_process_that_sampling_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the evidence of a member would be taken for another process's."""
    monkeypatch.setattr(proc, "exists", lambda pid: False)
    found = look(os.getpid(), 1.0)
    assert ProcessId(found.pid, found.start) == PortableSystem().identity(os.getpid())
    assert found.os_threads > 0
