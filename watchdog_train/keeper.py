"""The parent of one training: it pumps output into capped files and keeps the exit status.

One per attempt, run as `python -I -S keeper.py <attempt folder>/launch.json`, so that training
survives the supervisor's death. It must not import anything of ours nor outside the standard
library, never stop draining the streams, and never wait on any child but by its pid: a stolen
status turns a failure into success.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from typing import Any

BUFFER_BYTES = 8 * 1024 * 1024  # of output that no file takes yet; then the oldest is dropped
BLOCK_BYTES = 65536
WRITE_BYTES = 1024 * 1024
GATHER_S = 0.02  # small writes of a training are gathered this long: fewer wake-ups for everyone
STUCK_S = 1.0  # a disk that takes nothing for this long no longer slows the training down
SETTLE_S = 0.5  # how long an exit status waits for the output written before it
SCAN_EVERY_S = 0.5  # looking for adopted zombies reads all of /proc
PATIENCE_S = 60.0  # with a disk that refuses a record; then the training goes on without it
RECORD_BYTES = 1024
DEAF_TO = [  # they are meant for the training
    getattr(signal, name)
    for name in (
        *("SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP"),
        *("SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ", "SIGBREAK"),
    )
    if hasattr(signal, name)
]
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


class Stream:
    """One stream of the training: a reader that never waits for long, and a writer."""

    def __init__(self, path: str, fd: int, cap_bytes: int, wake_fd: int | None) -> None:
        self.path = path
        self.fd = fd
        self.half_bytes = max(cap_bytes // 2, 1)
        self.wake_fd = wake_fd
        self.changed = threading.Condition()
        self.blocks: deque[bytes] = deque()
        self.held_bytes = 0
        self.dropped_bytes = 0
        self.stuck = False
        self.ended = False
        self.file = -1
        self.file_bytes = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.writer = threading.Thread(target=self._write, daemon=True)
        self.reader.start()
        self.writer.start()

    def settled(self) -> bool:
        """Whether everything that was written until now is in the file."""
        with self.changed:
            if self.ended or self.held_bytes:
                return not self.held_bytes
        return sys.platform == "win32" or not select.select([self.fd], [], [], 0)[0]

    def lost_bytes(self) -> int:
        """What no file has, should we end now."""
        with self.changed:
            return self.dropped_bytes + self.held_bytes

    def _read(self) -> None:
        while True:
            try:
                block = os.read(self.fd, BLOCK_BYTES)
            except OSError:  # EIO: the last writer of a pseudo-terminal is gone
                block = b""
            with self.changed:
                if not block:
                    self.ended = True
                    self.changed.notify()
                    return
                # A fast training is slowed by a pipe that fills, as it would be without us; a
                # stuck or full disk must not stop it.
                while self.held_bytes + len(block) > BUFFER_BYTES and not self.stuck:
                    self.stuck = not self.changed.wait(STUCK_S)
                self.blocks.append(block)
                self.held_bytes += len(block)
                while self.held_bytes > BUFFER_BYTES and self.blocks:
                    oldest = self.blocks.popleft()
                    self.held_bytes -= len(oldest)
                    self.dropped_bytes += len(oldest)
                self.changed.notify()

    def _write(self) -> None:
        while True:
            with self.changed:
                while not self.blocks and not self.ended:
                    self.changed.wait()
                if not self.blocks:
                    return
                blocks = [self.blocks.popleft()]
                size = len(blocks[0])
                while self.blocks and size + len(self.blocks[0]) <= WRITE_BYTES:
                    blocks.append(self.blocks.popleft())
                    size += len(blocks[-1])
            data = b"".join(blocks)
            written = self._append(data)
            with self.changed:
                self.held_bytes -= max(written, 0)
                if written < len(data):
                    self.blocks.appendleft(data[max(written, 0) :])
                self.stuck = written < 0
                self.changed.notify()
                busy = self.held_bytes > WRITE_BYTES or self.ended
            wake(self.wake_fd)
            if written < 0:
                time.sleep(STUCK_S)
            elif not busy:
                time.sleep(GATHER_S)

    def _append(self, data: bytes) -> int:
        """How many bytes the file took; -1 when it refused."""
        try:
            if self.file >= 0 and self.file_bytes + len(data) > self.half_bytes:
                self._close()
                os.replace(self.path, self.path + ".1")
            if self.file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                self.file = os.open(self.path, flags, 0o600)
                self.file_bytes = os.fstat(self.file).st_size
            written = os.write(self.file, data[: self.half_bytes])
        except OSError:
            self._close()
            return -1
        self.file_bytes += written
        return written

    def _close(self) -> None:
        file, self.file = self.file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)


def wake(fd: int | None) -> None:
    """Tell a waiting supervisor, if there is one, that something happened."""
    if fd is not None:
        with suppress(OSError):  # full: it will wake up anyway; broken: nobody waits
            os.write(fd, b"\n")


class Record:
    """A small JSON file; its room is taken beforehand, so that a full disk loses no status."""

    def __init__(self, name: str, draft: str) -> None:
        self.name = name
        self.draft = draft
        self._store(b"")

    def fill(self, values: dict[str, Any], patience_s: float = PATIENCE_S) -> None:
        """Publish it; a disk that refuses is asked again every second, for so long."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._store(json.dumps(values).encode())
                return os.replace(self.draft, self.name)
            except OSError:  # noqa: PERF203
                if time.monotonic() >= deadline:
                    return None
                time.sleep(1.0)

    def _store(self, text: bytes) -> None:
        fd = os.open(self.draft, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, text.ljust(RECORD_BYTES))
        finally:
            os.close(fd)

    def make_durable(self) -> None:
        """For a power cut; after it was published, because a disk may take its time."""
        with suppress(OSError):
            fd = os.open(self.name, os.O_RDWR)
            os.fsync(fd)
            os.close(fd)


class Training:
    """The training's root process, and the orphans of it that are given to us."""

    def __init__(self, orders: dict[str, Any], child_fds: dict[str, int]) -> None:
        if sys.platform == "win32":
            import subprocess

            flags = subprocess.CREATE_NEW_PROCESS_GROUP
            options = {**child_fds, "cwd": orders["cwd"], "env": orders["env"]}
            self.process = subprocess.Popen(orders["argv"], creationflags=flags, **options)
            self.pid: int = self.process.pid
            return
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        heard, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(orders, child_fds, told, old_mask)
        os.close(told)
        failure = os.read(heard, BLOCK_BYTES)  # empty: closed by a successful exec
        os.close(heard)
        if failure:
            os.waitpid(self.pid, 0)
            number, _, where = failure.decode("utf-8", "surrogateescape").partition(" ")
            raise OSError(int(number), os.strerror(int(number)), where)

    def wait(self) -> int:
        """The exit code, -N for signal N; orphans are reaped meanwhile."""
        if sys.platform == "win32":
            return self.process.wait()
        scan_at = 0.0
        pending = False
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if pending and now >= scan_at:
                self._others_gone()
                pending, scan_at = False, now + SCAN_EVERY_S
            died = _next_death(max(scan_at - now, 0.0) if pending else PATIENCE_S)
            pending = pending or died

    def wait_for_others(self) -> bool:
        """Until nobody is left; False where no system tells who is left."""
        while sys.platform == "linux":
            if self._others_gone():
                return True
            _next_death(5.0)
            time.sleep(GATHER_S * 2)  # deaths come in herds; those of this moment stay pending
        return False

    def _others_gone(self) -> bool:
        """Reap what was given to us; whether nobody is left."""
        left = 0
        if sys.platform == "win32":
            return False
        me = os.getpid()
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            state, parent, _ = _stat(pid) or ("", 0, 0)
            if parent == me:
                left += 1
                if state == "Z" and pid != self.pid:
                    left -= os.waitpid(pid, os.WNOHANG)[0] == pid
        return not left


def _become(orders: dict[str, Any], child_fds: dict[str, int], told: int, mask: set[int]) -> None:
    """In the forked child: turn into the training, or tell why not."""
    if sys.platform == "win32":
        return
    where = orders["cwd"]
    try:
        os.setsid()
        for number in DEAF_TO:
            if number != signal.SIGHUP or not orders["ignore_hup"]:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # First out of the way of 0, 1 and 2, then into place.
        for target, fd in enumerate([os.dup(child_fds[n]) for n in ("stdin", "stdout", "stderr")]):
            os.dup2(fd, target)
        os.chdir(where)
        where = orders["argv"][0]
        environment = os.environ if orders["env"] is None else orders["env"]
        os.execvpe(where, orders["argv"], environment)  # noqa: S606
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        os.write(told, f"{code} {where}".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(127)


def _next_death(timeout_s: float) -> bool:
    if sys.platform == "win32":
        return False
    if sys.platform == "linux":
        return signal.sigtimedwait({signal.SIGCHLD}, timeout_s) is not None
    return signal.sigwait({signal.SIGCHLD}) is not None


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; a name may contain spaces and parentheses."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def _start_of(pid: int, orders: dict[str, Any]) -> int | None:
    known = _stat(pid) if orders["tell_start"] else None
    return known[2] if known else None


def prepare() -> None:
    """Be deaf to what is meant for the training, and adopt its orphans."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_NAME, b"wtrain-keeper", 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_streams(orders: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """The ends we read and the ends the training writes; pipes of our own where none were given."""
    if orders["fds"]:
        return orders["fds"], orders["child_fds"]
    reads, writes = {}, {}
    for name in orders["streams"]:
        reads[name], writes[name] = os.pipe()
    both = writes.get("output", -1)
    child_fds = {"stdin": 0, "stdout": writes.get("stdout", both)}
    return reads, {**child_fds, "stderr": writes.get("stderr", both)}


def start_pump(orders: dict[str, Any], reads: dict[str, int]) -> list[Stream]:
    """Begin to drain every stream into its file."""
    if orders["wake_fd"] is not None and sys.platform != "win32":
        os.set_blocking(orders["wake_fd"], False)
    return [
        Stream(path, reads[name], orders["cap_bytes"], orders["wake_fd"])
        for name, path in orders["streams"].items()
    ]


def keep(orders: dict[str, Any]) -> int:
    """Start the training, pump until it and all its descendants are gone; our exit code."""
    prepare()
    started = Record("keeper.json", "keeper.json.tmp")
    ended = Record("exit.json", "exit.json.tmp")
    amended = Record("exit.json", "exit.json.tmp2")
    wake_fd = orders["wake_fd"]
    reads, child_fds = open_streams(orders)
    for fd in {*reads.values(), *child_fds.values(), 0 if wake_fd is None else wake_fd}:
        os.set_inheritable(fd, False)
    me = os.getpid()
    about = {"keeper_pid": me, "keeper_start": _start_of(me, orders), "pid": None, "start": None}
    try:
        training = Training(orders, child_fds)
    except OSError as error:
        failure = {"errno": error.errno, "message": f"{error.filename}: {error.strerror}"[:512]}
        started.fill({**about, "error": failure, "started_at": time.time()})
        os.unlink(ended.draft)
        os.unlink(amended.draft)
        wake(wake_fd)
        return 1
    streams = start_pump(orders, reads)
    # A writer that we keep open would hide the end of the stream, a reader the end of a pipeline.
    for fd in {*child_fds.values(), *orders["inherited_fds"]} - {0, 1, 2}:
        os.close(fd)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    who = {"pid": training.pid, "start": _start_of(training.pid, orders)}
    started.fill({**about, **who, "error": None, "started_at": time.time()})
    wake(wake_fd)

    code = training.wait()
    settled_by = time.monotonic() + SETTLE_S
    while not all(stream.settled() for stream in streams) and time.monotonic() < settled_by:
        time.sleep(GATHER_S)
    how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
    outcome = {**who, **how, "ended_at": time.time()}
    dropped_bytes = sum(stream.dropped_bytes for stream in streams)
    ended.fill({**outcome, "dropped_bytes": dropped_bytes})
    wake(wake_fd)
    ended.make_durable()

    if not training.wait_for_others():
        for stream in streams:
            stream.reader.join()
    finish_by = time.monotonic() + orders["linger_s"]
    for stream in streams:
        stream.writer.join(max(finish_by - time.monotonic(), 0.0))
    lost_bytes = sum(stream.lost_bytes() for stream in streams)
    if lost_bytes > dropped_bytes:
        amended.fill({**outcome, "dropped_bytes": lost_bytes}, patience_s=0.0)
    else:
        os.unlink(amended.draft)
    return 0


def main(path: str) -> int:
    """Carry out the orders in the file; paths in them are relative to its folder."""
    folder, name = os.path.split(os.path.abspath(path))
    os.chdir(folder)
    with open(name, encoding="utf-8") as file:
        orders = json.load(file)
    if orders["argv"] is not None:
        return keep(orders)
    # The keeper before us has died: the training writes on, somebody must drain it.
    prepare()
    for stream in start_pump(orders, orders["fds"]):
        stream.reader.join()
        stream.writer.join(orders["linger_s"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
