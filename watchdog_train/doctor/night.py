"""What ends or stops a training while nobody looks: logout, sleep, upgrades, stale downloads.

Reads files of the system and asks nobody. What a file does not tell is unknown, not fine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.doctor import Check
from watchdog_train.evidence.host import cgroup_memory
from watchdog_train.report.words import size_text

FILE_CAP_BYTES = 1 << 16
MOST_FILES = 20_000
"""Of a cache; a larger one is looked at in part, which is said."""
LOOK_S = 5.0
STALE_S = 3600.0
"""A download under way writes all the time; so old a lock has no owner, or a very slow one."""
LOGIND = ("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d",
          "/usr/lib/systemd/logind.conf.d")  # fmt: skip


def night(environment: Mapping[str, str], root: Path = Path("/")) -> Iterator[Check]:
    """All of them.

    Args:
        environment: of the training.
        root: of the file system; another one in tests.
    """
    yield memory_limit()
    if sys.platform == "linux":
        yield from logout(root, os.environ.get("USER") or os.environ.get("LOGNAME") or "")
        yield from upgrades(root)
        yield from battery(root)
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    yield from hub_cache(Path(environment.get("HF_HUB_CACHE") or cache / "hub"))


def memory_limit() -> Check:
    """Of the container or job."""
    found = cgroup_memory()
    limit = found["limit_bytes"] if found is not None else None
    if limit is None:
        return Check(
            name="memory limit", status="ok", says="none for this process but the machine's"
        )
    used = found["used_bytes"] if found is not None else None
    says = f"{size_text(limit)} for this container or job"
    says += f", {size_text(used)} of it in use" if used is not None else ""
    return Check(name="memory limit", status="ok", says=says)


def logout(root: Path, user: str) -> Iterator[Check]:
    """What logind does when the last session of a user ends; logind.conf(5), loginctl(1)."""
    settings = logind_settings(root)
    if settings is None:
        return
    lingers = (root / "var/lib/systemd/linger" / user).exists() if user else False
    kills = settings.get("KillUserProcesses", "no").lower() in ("yes", "true", "1", "on")
    if kills and not lingers:
        says = "logind ends your processes when you log out (KillUserProcesses=yes)"
        mend = "loginctl enable-linger, and `wtrain service`; or systemd-run --user --scope"
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


def upgrades(root: Path) -> Iterator[Check]:
    """A driver that is replaced under a running training ends its use of the GPU."""
    text = "\n".join(_lines(root / "etc/apt/apt.conf.d/20auto-upgrades"))
    if 'Unattended-Upgrade "1"' not in text:
        return
    driver = (root / "proc/driver/nvidia/version").exists()
    says = "packages are upgraded by themselves, at night"
    mend = "apt-mark hold the driver's packages, or: systemctl stop apt-daily-upgrade.timer"
    yield Check(
        name="upgrades",
        status="warning" if driver else "ok",
        says=f"{says}, the GPU's driver may be among them" if driver else says,
        mend=mend if driver else None,
    )


def battery(root: Path) -> Iterator[Check]:
    """A laptop sleeps."""
    supplies = root / "sys/class/power_supply"
    kinds = {
        name: "".join(_lines(supplies / name / "type")).strip()
        for name in (os.listdir(supplies) if supplies.is_dir() else ())
    }
    if "Battery" not in kinds.values():
        return
    discharging = any(
        "".join(_lines(supplies / name / "status")).strip() == "Discharging"
        for name, kind in kinds.items()
        if kind == "Battery"
    )
    says = "runs on its battery" if discharging else "a laptop: it may sleep when nobody types"
    mend = "plug it in" if discharging else "wtrain run --keep-awake, and leave the lid open"
    yield Check(name="sleep", status="warning", says=says, mend=mend)


def hub_cache(cache: Path, now: float | None = None) -> Iterator[Check]:
    """Downloads that were cut off, and locks that nobody holds any more."""
    if not cache.is_dir():
        return
    now = time.time() if now is None else now
    incomplete, stale, whole = 0, 0, True
    until = time.monotonic() + LOOK_S
    for number, path in enumerate(_files(cache)):
        if number >= MOST_FILES or time.monotonic() > until:
            whole = False
            break
        with suppress(OSError):
            if path.endswith(".incomplete"):
                incomplete += now - os.stat(path).st_mtime > STALE_S
            elif path.endswith(".lock"):
                stale += now - os.stat(path).st_mtime > STALE_S and _is_held(path) is True
    part = "" if whole else " (only a part was looked at)"
    if incomplete:
        says = (
            f"{incomplete} downloads in {cache} were cut off{part}: what they are of is not there"
        )
        mend = "download it now, in the day: the night would begin with it, or end"
        yield Check(name="hub cache", status="warning", says=says, mend=mend)
    if stale:
        says = (
            f"{stale} old locks in {cache} are held{part}: who needs the same file waits for ever"
        )
        yield Check(name="hub locks", status="warning", says=says, mend="lsof tells who holds them")
    if not incomplete and not stale:
        yield Check(name="hub cache", status="ok", says=f"no cut download in {cache}{part}")


def wandb(environment: Mapping[str, str], home: Path) -> Check:
    """A login that is asked for at night is waited for until the morning."""
    mode = environment.get("WANDB_MODE", "").lower()
    if mode in ("offline", "disabled", "dryrun"):
        return Check(name="wandb", status="ok", says=f"WANDB_MODE={mode}: it needs no network")
    netrc = _lines(home / ".netrc") or _lines(home / "_netrc")
    if environment.get("WANDB_API_KEY") or any("wandb" in line for line in netrc):
        return Check(name="wandb", status="ok", says="a login is there, if the training uses it")
    says = "no login is there: a training that uses wandb asks for one, or fails"
    return Check(name="wandb", status="warning", says=says,
                 mend="wandb login, or WANDB_MODE=offline")  # fmt: skip


def _is_held(path: str) -> bool | None:
    """Whether somebody has the lock; it is taken for a moment where nobody has."""
    if sys.platform == "win32":
        return None
    import fcntl

    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _files(folder: Path) -> Iterable[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(place, name)


def _lines(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        return file.read(FILE_CAP_BYTES).decode("utf-8", "replace").splitlines()
    return []
