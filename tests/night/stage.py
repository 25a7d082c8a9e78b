"""The place of the play: a disk of its own, a terminal that is closed, and what stays there."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support import MARKER, marked_processes, run_command, wait_until

BIN = Path(sys.executable).parent
DISK = "size=1g"
"""Above the 512 MB under which wtrain calls any disk nearly full."""

T = TypeVar("T")


class NightError(Exception):
    """The play cannot go on."""


def until(look: Callable[[], T | None], timeout_s: float, why: str, poll_s: float = 0.2) -> T:
    """The first true value of `look`.

    Raises:
        NightError: there was none within `timeout_s`.
    """
    try:
        return wait_until(look, timeout_s, why, poll_s)
    except AssertionError as error:
        raise NightError(str(error)) from None


class Disk:
    """A small file system for the training; a plain folder where none can be mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", DISK, "wtrain-night", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.why_not = done.stderr.strip() or None if done.returncode else None
        self.mounted = done.returncode == 0
        self._ballast = folder / "somebody-elses-data"

    def fill(self, leave_bytes: int) -> None:
        """Somebody else's files take nearly all that is free."""
        room = os.statvfs(self.folder)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - leave_bytes)

    def free(self) -> None:
        """They are gone again."""
        self._ballast.unlink()

    def close(self) -> None:
        """Unmount it; who was killed just now may hold it for a moment."""
        if self.mounted:
            until(self._unmounted, 15, f"{self.folder} is unmounted")

    def _unmounted(self) -> bool:
        done = subprocess.run(["umount", str(self.folder)], capture_output=True, check=False)
        return done.returncode == 0


class Terminal:
    """A shell on a terminal of its own, as a login has it."""

    def __init__(self, cwd: Path, environment: Mapping[str, str]) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execve("/bin/sh", ["sh", "-i"], {**environment, "PS1": "$ ", "TERM": "dumb"})
            finally:
                os._exit(127)
        self.shown = ""

    def type(self, line: str, timeout_s: float) -> int:
        """Type a command, wait for its end, and return its exit code."""
        # In two parts, so that the echo of the line is not taken for its end.
        os.write(self._master, f'{line}; echo "END-"OF-$?-\n'.encode())
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if select.select([self._master], [], [], 0.5)[0]:
                self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
            found = re.search(r"END-OF-(\d+)-", self.shown)
            if found:
                return int(found[1])
        raise NightError(f"the terminal shows no end of its command:\n{self.shown}")

    def hang_up(self) -> None:
        """Close the window: the kernel sends SIGHUP to all that belong to it."""
        os.close(self._master)
        until(self._ended, 10, "the shell ends when its terminal is closed")

    def _ended(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid


def environment(home: Path, marker: str, extra: Mapping[str, str]) -> dict[str, str]:
    """That of a user who has nothing of wtrain yet; all that wtrain keeps is below `home`."""
    made = {}
    for name in ("state", "config", "cache", "runtime", "tmp"):
        (home / name).mkdir(parents=True, mode=0o700)
        made[name] = str(home / name)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WTRAIN_")}
    return {
        **kept,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "XDG_STATE_HOME": made["state"],
        "XDG_CONFIG_HOME": made["config"],
        "XDG_CACHE_HOME": made["cache"],
        "XDG_RUNTIME_DIR": made["runtime"],
        "TMPDIR": made["tmp"],
        "HF_HOME": f"{made['cache']}/hf",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        MARKER: marker,
        **extra,
    }


def wtrain(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command of wtrain that ends soon, with what it said."""
    return run_command([str(BIN / "wtrain"), *arguments], cwd=cwd, env=dict(env), code=None)


def wtrain_json(*arguments: str, cwd: Path, env: Mapping[str, str]) -> Any:
    """What a command of wtrain says to a program; None when it says nothing."""
    said = wtrain(*arguments, "--json", cwd=cwd, env=env).stdout
    return json.loads(said) if said.strip() else None


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    place = Path("/dev/shm")
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def end_what_is_left(marker: str) -> None:
    """After a play that broke off: only processes that carry its mark."""
    for pid in marked_processes(marker):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not marked_processes(marker), 15, "killed processes are gone")
