"""A control group (cgroup v2) of an attempt, below ours, where ours was given to us to divide.

Every process is born in the group of its parent and stays there, whoever its parent is later. The
keeper makes the group and puts itself in (keeper/control_group.py); a supervisor opens it by its
path. Only a group that says that it is delegated, or of which systemd says so, is divided: it
belongs to whoever manages it otherwise, root or not. Sources: the kernel's cgroup-v2.rst; systemd's
CGROUP_DELEGATION.md, which names the two attributes.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from watchdog_train.system import proc

ATTRIBUTES = ("user.delegate", "trusted.delegate")
"""Set by systemd on what it delegates; the second one is older, and for root to read."""
KILL = "cgroup.kill"
"""Since Linux 5.14."""
PROCS_CAP_BYTES = 1 << 20
GOES_S = 0.5
"""What waits for it is the end of a run, or the next attempt."""
AGAIN_S = 0.01
MOST_GROUPS = 256
"""Below the one of an attempt: a training may divide it further."""


def delegated(about: str = "/proc/self") -> Path | None:
    """Our own group, where it may be divided; None where there is none or it may not."""
    if sys.platform != "linux":
        return None
    root = _mounted(about)
    own = _own(about)
    if root is None or own is None:
        return None
    folder = root / own.lstrip("/")
    if not _may_be_divided(folder):
        return None
    return folder if _has_attribute(folder) or systemd_says_so(own) else None


def _has_attribute(folder: Path) -> bool:
    for name in ATTRIBUTES:
        with suppress(OSError):
            if sys.platform == "linux" and os.getxattr(folder, name) == b"1":
                return True
    return False


def _own(about: str) -> str | None:
    text = proc.read(f"{about}/cgroup") or b""
    for line in os.fsdecode(text).splitlines():
        if line.startswith("0::/") and "/.." not in line and not line.endswith(" (deleted)"):
            return line[len("0::") :]
    return None


def _mounted(place: str) -> Path | None:
    """Where the whole hierarchy is mounted, or as much of it as we may see."""
    text = proc.read(f"{place}/mountinfo", PROCS_CAP_BYTES) or b""
    for line in os.fsdecode(text).splitlines():
        mount, _, about = line.partition(" - ")
        fields = mount.split(" ")
        if about.startswith("cgroup2 ") and len(fields) > 4 and fields[3] == "/":
            return Path(fields[4])
    return None


def _may_be_divided(folder: Path) -> bool:
    kind = proc.read(str(folder / "cgroup.type")) or b""
    return kind.strip() == b"domain" and os.access(folder, os.W_OK) and (folder / KILL).exists()


class ControlGroup:
    """The group of one attempt; see system.protocol.ProcessGroup."""

    def __init__(self, name: str) -> None:
        """Open it.

        Args:
            name: its path, as the keeper has recorded it.

        Raises:
            OSError: there is none, or it is not below a group that was delegated to us.
        """
        self._folder = Path(name)
        if self._folder.parent != delegated():
            raise OSError(f"{name} is not a group below the one that was given to this supervisor")
        os.stat(self._folder / KILL)

    def pids(self) -> frozenset[int]:
        """Whoever is in it now, or in a group below it."""
        found: set[int] = set()
        for number, (folder, _, names) in enumerate(os.walk(self._folder)):
            if number >= MOST_GROUPS:
                raise OSError(f"more than {MOST_GROUPS} groups are below {self._folder}")
            if "cgroup.procs" in names:
                text = proc.read(f"{folder}/cgroup.procs", PROCS_CAP_BYTES) or b""
                found.update(int(line) for line in text.split() if line.isdigit())
        return frozenset(found - {0})  # 0: in a namespace of pids that we do not see

    def end_all(self) -> None:
        """SIGKILL to everybody in it at once, also to other users' processes."""
        (self._folder / KILL).write_text("1", encoding="ascii")

    def close(self, left: Iterable[int] = ()) -> None:
        """Let go of it; empty it goes, with those below it. Who is left goes to our own group."""
        with suppress(OSError):
            for pid in self.pids().intersection(left):
                (self._folder.parent / "cgroup.procs").write_text(str(pid), encoding="ascii")
        remove(self._folder)


def remove(group: Path, within_s: float = GOES_S) -> bool:
    """Remove a group and those below it; whether they are gone. One with somebody in it stays.

    Whoever is shown as a zombie may have threads that have not ended yet: a moment longer the
    group is busy, though nobody is left in it.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
        except OSError as error:
            if error.errno == errno.EBUSY and time.monotonic() < until:
                time.sleep(AGAIN_S)
                continue
        return not group.exists()


ANSWER_S = 2.0
"""It takes about 10 ms; a manager that hangs must not hold up a start for long."""
ANSWER_CAP = 4096
_OF_A_USER = re.compile(r"/user@\d+\.service/")
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,250}\.(?:scope|service)")


@functools.lru_cache(maxsize=8)
def systemd_says_so(group: str) -> bool:
    """Whether this group is that of a unit with `Delegate=yes`.

    Args:
        group: as in /proc/self/cgroup. One below the group of a unit is somebody else's.
    """
    unit = group.rpartition("/")[2]
    systemctl = shutil.which("systemctl")
    if systemctl is None or not _UNIT.fullmatch(unit):
        return False
    whose = ["--user"] if _OF_A_USER.search(group) else []
    command = [systemctl, *whose, "show", "--property=ControlGroup,Delegate", "--", unit]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    said = done.stdout[:ANSWER_CAP].decode("utf-8", "replace").splitlines()
    return {"Delegate=yes", f"ControlGroup={group}"} <= set(said)
