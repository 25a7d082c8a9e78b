"""The one table of processes that the supervisor itself has started.

Every child has a deadline and a session of its own. It must never wait on any child but by its
pid: `Popen.wait()` of a child that exited 9 returned 0 after another waitpid(-1) had stolen its
status (measured).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import IO, TypeVar

import msgspec

from watchdog_train.core.model import ProcessId, ProcessRow
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import for_child, make_folder, remove
from watchdog_train.whole_files import read_json, replace_json

KILL_AFTER_S = 2.0
"""From SIGTERM to SIGKILL for a child past its deadline; no child has state worth more."""
GONE_WITHIN_S = 1.0
"""From SIGKILL to the exit of a child that is not inside the kernel."""
END_LOOK_S = 0.01
MOST_ADOPTED = 1024
"""Orphans whose exit is remembered; limited, so that a storm of them costs no memory."""
SIGKILL = 9
if sys.platform == "win32":
    OWN_GROUP_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    OWN_GROUP_FLAGS = 0

File = int | IO[bytes]


class Child:
    def __init__(
        self, name: str, process: subprocess.Popen[bytes], who: ProcessId, now: float
    ) -> None:
        self.name = name
        self.process = process
        self.identity = who
        self.started_at = now
        self.deadline: float | None = None
        self.timed_out = False
        self.has_ended = False
        self.code: int | None = None
        self.signal: int | None = None
        """After its exit exactly one of code and signal is set."""
        self.seconds = 0.0
        """How long it ran; 0 while it runs."""

    @property
    def pid(self) -> int:
        return self.identity.pid


class ChildTable:
    """Starts children, kills those past their deadline, collects exit statuses by pid."""

    def __init__(self, system: ProcessSystem, clock: Callable[[], float] = time.monotonic) -> None:
        self.system = system
        self._clock = clock
        self._children: dict[int, Child] = {}
        self._released: list[ProcessId] = []
        self._adopted: dict[ProcessId, int] = {}
        """Exit codes of adopted orphans, the newest last."""

    def spawn(
        self,
        argv: Sequence[str],
        *,
        name: str,
        deadline_s: float | None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: File = subprocess.DEVNULL,
        stdout: File = subprocess.DEVNULL,
        stderr: File = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> Child:
        """Start a child in its own session, with a deadline; OSError if that fails."""
        variables, descriptors = for_child()
        process = subprocess.Popen(
            list(argv),
            env={**(os.environ if env is None else env), **variables},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(*pass_fds, *descriptors),
            start_new_session=sys.platform != "win32",
            creationflags=OWN_GROUP_FLAGS,
        )
        now = self._clock()
        # Not waited for yet, so the pid is still its own, as a zombie at worst.
        who = self.system.identity(process.pid) or ProcessId(process.pid, 0)
        child = Child(name, process, who, now)
        child.deadline = None if deadline_s is None else now + deadline_s
        self._children[child.pid] = child
        return child

    def running(self) -> tuple[Child, ...]:
        """Children that no poll has reported yet."""
        return tuple(self._children.values())

    def pids(self) -> frozenset[int]:
        """Pids of all living children that were started here, released ones included."""
        alive = (who.pid for who in self._released if self.system.is_alive(who) is not False)
        return frozenset((*self._children, *alive))

    def end(self, child: Child) -> None:
        """Set the deadline to now: the next polls kill it."""
        child.deadline = self._clock()

    def end_all(self) -> None:
        """Kill remaining children before the exit; waits KILL_AFTER_S + GONE_WITHIN_S at most."""
        for child in self._children.values():
            self.end(child)
        until = self._clock() + KILL_AFTER_S + GONE_WITHIN_S
        while self._children and self._clock() < until:
            self.poll()
            time.sleep(END_LOOK_S)

    def release(self, child: Child) -> None:
        """It may outlive the supervisor: it is neither waited for nor killed."""
        self._children.pop(child.pid, None)
        self._released.append(child.identity)
        child.process.returncode = 0  # or Popen would complain about a child that still runs

    def poll(self, rows: Mapping[int, ProcessRow] | None = None) -> list[Child]:
        """Children that exited since the last poll; never blocks.

        With `rows`, a sample of the processes, adopted orphans are reaped, too.
        """
        finished = []
        for child in tuple(self._children.values()):
            self._enforce_deadline(child)
            code = None
            if not child.timed_out or sys.platform != "linux":
                code = child.process.poll()
            elif self._has_ended(child):
                # While the leader is not reaped the group's number is its own: what it left goes.
                self.system.send_signal_to_group(child.identity, SIGKILL)
                code = child.process.poll()
            if code is not None:
                del self._children[child.pid]
            elif self._is_stuck(child):
                self.release(child)
                code = -SIGKILL
            else:
                continue
            child.has_ended = True
            child.code, child.signal = (code, None) if code >= 0 else (None, -code)
            child.seconds = self._clock() - child.started_at
            finished.append(child)
        if rows:
            self._reap_adopted(rows)
        return finished

    def _is_stuck(self, child: Child) -> bool:
        """Inside the kernel, as on a file system that does not answer; it is not waited for."""
        limit_s = KILL_AFTER_S + GONE_WITHIN_S
        return child.deadline is not None and self._clock() >= child.deadline + limit_s

    def _enforce_deadline(self, child: Child) -> None:
        now = self._clock()
        if child.deadline is None or now < child.deadline:
            return
        if not child.timed_out:
            child.timed_out = True
            child.deadline = now  # we may have been stopped ourselves: it gets its time to end
            self.system.send_signal_to_group(child.identity, SIGTERM)
        elif now >= child.deadline + KILL_AFTER_S:
            self.system.send_signal_to_group(child.identity, SIGKILL)

    @staticmethod
    def _has_ended(child: Child) -> bool:
        if sys.platform != "linux":
            return False
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, child.pid, options) is not None
        return True

    def _reap_adopted(self, rows: Mapping[int, ProcessRow]) -> None:
        if sys.platform == "win32":
            return
        me = os.getpid()
        for row in rows.values():
            if row.ppid == me and row.state == "Z" and row.pid not in self._children:
                self._reap(row.identity)

    def adopted_status(self, who: ProcessId) -> int | None:
        """The exit code of an adopted process, -N for signal N; None if unknown.

        A training becomes our child when its keeper dies; see ProcessSystem.become_subreaper().
        """
        # Asked here, too: at the newest look its parent may have been the keeper still.
        asked = who in self._adopted or who.pid in self._children
        if not asked and self.system.identity(who.pid) == who:
            self._reap(who)
        return self._adopted.get(who)

    def _reap(self, who: ProcessId) -> None:
        """Reap an exited own child; its pid is not reused until then."""
        if sys.platform == "win32":
            return
        with suppress(ChildProcessError):
            pid, status = os.waitpid(who.pid, os.WNOHANG)
            if pid == who.pid:
                self._adopted[who] = os.waitstatus_to_exitcode(status)
                if len(self._adopted) > MOST_ADOPTED:
                    del self._adopted[next(iter(self._adopted))]


LINE_CAP_BYTES = 1 << 18
ANSWER_CAP_BYTES = 16 << 20
Answer = TypeVar("Answer")


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of wtrain.

    -I: the training's directory must not be on the path. It may hold a file named like a module of
    ours or of the standard library.
    """
    return (sys.executable, "-I", "-m", name, *arguments)


class Helper:
    """A child that works for the supervisor, at most one process at a time under one name.

    Every method returns at once. A child with one question gets it as a file and answers with a
    file. One that stays prints lines; its stdin ends with the supervisor. The caller decides what a
    failure means, and when to try again.
    """

    def __init__(self, children: ChildTable, name: str, folder: Path | None = None) -> None:
        """`folder` takes question and answer; it is private, and made if missing."""
        self.children = children
        self.name = name
        self.question = (folder or Path()) / f"{name}-question.json"
        self.answer_file = self.question.with_name(f"{name}-answer.json")
        self._child: Child | None = None
        self._stdin = self._output = -1
        self._rest = b""

    @property
    def running(self) -> bool:
        """Whether it was started and has not been seen to exit."""
        return self._child is not None and not self._child.has_ended

    def start(
        self,
        argv: Sequence[str],
        *,
        question: msgspec.Struct | None = None,
        deadline_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stays: bool = False,
    ) -> None:
        """Start it with the path of the question's file as its last argument.

        The question's field `out` becomes the path for the answer; an old answer is removed.
        A child that `stays` prints lines for hear(), and its stdin ends when we do.

        Raises:
            OSError: it cannot be started; no file of it is left.
        """
        self.close()
        self._child = None
        stdin = said = subprocess.DEVNULL
        try:
            if question is not None:
                make_folder(self.question.parent)
                remove(self.answer_file)
                if hasattr(question, "out"):
                    question = msgspec.structs.replace(question, out=str(self.answer_file))
                replace_json(self.question, question)
                argv = (*argv, str(self.question))
            if stays:
                stdin, self._stdin = os.pipe()
                self._output, said = os.pipe()
                if sys.platform != "win32":
                    os.set_blocking(self._stdin, False)
                    os.set_blocking(self._output, False)
            self._child = self.children.spawn(
                argv,
                name=self.name,
                deadline_s=deadline_s,
                env=env,
                stdin=stdin,
                stdout=said,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self.close()
            self._forget_files()
            raise
        finally:
            for fd in (stdin, said):
                if fd >= 0:
                    os.close(fd)

    def hear(self) -> list[bytes] | None:
        """The lines since the last call; None after the end of its output or too long a line."""
        try:
            data = os.read(self._output, LINE_CAP_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_CAP_BYTES:
            return None
        return lines if data else None

    def answer(self, kind: type[Answer]) -> Answer | None:
        """Its answer, None unless valid; the files are removed."""
        found = read_json(self.answer_file, kind, cap_bytes=ANSWER_CAP_BYTES)
        self._forget_files()
        return found

    @property
    def seconds(self) -> float:
        """How long it ran; 0 while it runs."""
        return self._child.seconds if self._child is not None else 0.0

    def why_no_answer(self) -> str:
        child = self._child
        if child is None or not child.has_ended:
            return "it has not ended"
        if child.timed_out:
            return f"it did not end within {child.seconds:.0f} s and was killed"
        if child.signal is not None:
            return f"it was killed by signal {child.signal}"
        return f"it failed with exit code {child.code}" if child.code else "it left no answer"

    def kill(self) -> None:
        """Have the next polls of the table kill it, and read no more from it."""
        if self._child is not None and self.running:
            self.children.end(self._child)
        self.close()

    def close(self) -> None:
        """Close our ends: a child that stays exits by that."""
        for fd in (self._stdin, self._output):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._stdin = self._output = -1
        self._rest = b""

    def _forget_files(self) -> None:
        # A question may hold secrets (addresses to send to): an unread one is removed, too.
        for path in (self.question, self.answer_file):
            with suppress(OSError):
                remove(path)
