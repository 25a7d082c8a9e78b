"""What ends a training while nobody looks: a logout.

Reads files of the system and asks nobody. What a file does not tell is unknown, not fine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from watchdog_train.doctor import Check

FILE_CAP_BYTES = 1 << 16
LOGIND = ("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d",
          "/usr/lib/systemd/logind.conf.d")  # fmt: skip


def logout(root: Path, user: str) -> Iterator[Check]:
    """What logind does when the last session of a user ends; logind.conf(5), loginctl(1)."""
    settings = logind_settings(root)
    if settings is None:
        return
    lingers = (root / "var/lib/systemd/linger" / user).exists() if user else False
    kills = settings.get("KillUserProcesses", "no").lower() in ("yes", "true", "1", "on")
    if kills and not lingers:
        says = "logind ends your processes when you log out (KillUserProcesses=yes)"
        mend = "loginctl enable-linger, and examples/wtrain.service; or systemd-run --user --scope"
        yield Check(name="logout", status="failure", says=says, mend=mend)
    else:
        says = "you linger" if lingers else "processes are left alone (KillUserProcesses=no)"
        yield Check(name="logout", status="ok", says=says)
    if settings.get("RemoveIPC", "yes").lower() in ("yes", "true", "1", "on") and not lingers:
        if hasattr(os, "getuid") and os.getuid() == 0:
            return  # system users are spared
        says = "shared memory of yours is removed when you log out (RemoveIPC=yes)"
        mend = "loginctl enable-linger: DataLoader workers lose their batches otherwise"
        yield Check(name="shared memory at logout", status="warning", says=says, mend=mend)


def logind_settings(root: Path) -> dict[str, str] | None:
    """Its settings, later files over earlier ones; None where there is no logind."""
    if not (root / "run/systemd").is_dir():
        return None
    files: list[Path] = []
    for name in LOGIND:
        place = root / name.lstrip("/")
        files += sorted(place.glob("*.conf")) if place.is_dir() else [place]
    found: dict[str, str] = {}
    for file in files:
        for line in _lines(file):
            key, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith(("#", ";")):
                found[key.strip()] = value.strip()
    return found


def _lines(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        return file.read(FILE_CAP_BYTES).decode("utf-8", "replace").splitlines()
    return []
