"""What a machine may do to a run: a disk that hangs, memory that is full, no descriptors, sleep."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.chaos.case import Case, NotReachedError
from tests.support import is_alive

DISK_BYTES = 24 << 20
HUNG_S = (3.0, 10.0)
ASLEEP_S = (6.0, 9.0)
"""Longer than `late_s`."""
SPARE_DESCRIPTORS = 1


def hanging_runs(case: Case) -> None:
    """The run directory on a disk of its own that can be made to hang, as a network home does."""
    image, folder = case.cwd / "disk.img", case.cwd / "wtrain-runs"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    folder.mkdir()
    for words in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(folder)],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            case.impossible = f"{words[0]} fails here: {done.stderr.strip()[-200:]}"
            return


def hang_runs(case: Case) -> None:
    """Whoever writes there waits, in the kernel, until it goes on; nobody else may."""
    case.expected.harmless = True
    folder = case.cwd / "wtrain-runs"
    _freeze(folder, "-f")
    case.notes.append("the disk hangs")
    case.later(case.chance.uniform(*HUNG_S), lambda: _thaw(case, folder))


def _thaw(case: Case, folder: Path) -> None:
    case.notes.append("the disk goes on")
    _freeze(folder, "-u")


def _freeze(folder: Path, how: str) -> None:
    subprocess.run(["fsfreeze", how, str(folder)], check=True, capture_output=True, timeout=60)


def fill_memory(case: Case) -> None:
    """/dev/shm has not a byte left, for a while or for good; workers of torch need it."""
    case.expected.harmless = not case.shape.workers
    path = Path("/dev/shm/chaos-filling")
    with path.open("wb", buffering=0) as file:
        for block_bytes in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"\0" * block_bytes) == block_bytes:
                    pass
    case.notes.append("shared memory is full")
    # At the end of the case at the latest.
    case.later(case.chance.choice((2.0, 8.0, 1e9)), lambda: path.unlink(missing_ok=True))


def take_descriptors(case: Case) -> None:
    """The supervisor, or the keeper, can open nothing any more; for a while."""
    case.expected.harmless = True
    role = case.chance.choice(("supervisor", "supervisor", "keeper"))
    pid = case.one(role)
    try:
        used = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1 + SPARE_DESCRIPTORS, before[1]))
    except (ProcessLookupError, FileNotFoundError, ValueError):  # gone, or a zombie
        raise NotReachedError(f"the {role} was gone") from None
    case.notes.append(f"no descriptors for the {role}")

    def give_back() -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    case.later(case.chance.uniform(1.0, 6.0), give_back)


def sleep(case: Case) -> None:
    """All processes stand still and go on together, as after a suspend: that is no silence."""
    case.expected.harmless = True
    pids = [*case.pids("supervisor"), *case.pids("keeper")]
    pids += [*case.pids("launcher"), *case.pids("rank"), *case.pids("worker")]
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    case.notes.append(f"asleep: {pids}")
    case.wait(case.chance.uniform(*ASLEEP_S))
    # The supervisor last: what it sees first must be a training that runs.
    for pid in reversed(pids):
        _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    if is_alive(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
