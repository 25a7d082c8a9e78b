"""Whether systemd has given us the control group that we run in, asked of systemd itself.

The user manager of systemd 252 (Debian 12) sets no attribute on what it delegates, so the group
alone does not tell. Asked at most once for a group, and only where it could be a unit's.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess

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
