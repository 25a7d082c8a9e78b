"""Paths of the files of a run, the runs of a place, and how a run differs from a copy of it.

Makes no file but identity.json, and reads no events or settings.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from watchdog_train.core.model import Value
from watchdog_train.errors import WtrainError
from watchdog_train.system import proc
from watchdog_train.system.file_systems import private_runtime_directory
from watchdog_train.trusted_files import ForeignError, hold, open_read
from watchdog_train.whole_files import read_json, replace_json

RUNS_DIR = "wtrain-runs"
AGENTS = ".agents"
"""In the directory of the runs: the run directories of agents. The leader's run has their data."""
LATEST = "latest"
TIMES_SUFFIX = ".times"
"""A file next to a captured stream: when the keeper had written how much of it."""
_RUN_ID = re.compile(r"(?P<name>.+)-(?P<stamp>\d{8}-\d{6})-(?P<tail>[0-9a-f]{4})")
_RUNS_LISTED = 100_000


class _Inside:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, _: object = None) -> Path:
        return run.path / self._name


class RunDirectory(msgspec.Struct, frozen=True):
    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        """Without time and tail."""
        match = _RUN_ID.fullmatch(self.run_id)
        return match["name"] if match else self.run_id

    @property
    def stamp(self) -> str:
        """`yyyymmdd-hhmmss` of its creation, "" for a directory with a name of its own."""
        match = _RUN_ID.fullmatch(self.run_id)
        return match["stamp"] if match else ""

    events = _Inside("events.jsonl")
    config = _Inside("config.yaml")
    environment = _Inside("environment.json")
    """The user's environment without secrets, for `wtrain restart`."""
    trace = _Inside("trace.jsonl")
    """The sampled signals; the older part is a file next to it."""
    present = _Inside("present.json")
    """The checkpoints that were there when the run began."""
    lock = _Inside("lock")
    slot_dir_file = _Inside("slot_dir")
    """Text file that holds the path of the slot directory."""
    requests = _Inside("requests")
    attempts = _Inside("attempts")
    stalls = _Inside("stalls")

    @property
    def spill_dir(self) -> Path | None:
        """Where events are that the disk does not take; None while there is no such place.

        Not inside the slot directory: that one is removed with the run.
        """
        return private_runtime_directory("spill", self.run_id, make=False)

    def attempt(self, number: int) -> Path:
        """The folder of an attempt, 1-based."""
        return self.attempts / f"{number:04d}"

    def plan(self, number: int) -> Path:
        return self.attempt(number) / "plan.json"

    kept_copies = _Inside("kept")
    """Copies of checkpoint files that the script overwrites in place."""

    def kept(self, path: str) -> Path:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
        return self.kept_copies / digest / os.path.basename(path)

    def stall(self, stall_id: str) -> Path:
        return self.stalls / stall_id

    def hold(self) -> None:
        """Hold it open to act in it: its files are found from now on, even if a parent moves.

        WtrainError: it belongs to another user, is a copy of a run, or cannot be opened.
        """
        proc.refuse_foreign()
        self.refuse_copy()
        try:
            hold(self.path)
        except ForeignError as error:
            owner = (error.strerror or "").rpartition(" ")[2]
            raise WtrainError(
                f"{error.strerror}: wtrain only reads such a run, and runs no command of it",
                context=str(self.path),
                hint=f"do this as that user: sudo -u {owner} wtrain ...; wtrain status only reads",
                reference="run-foreign",
            ) from error
        except OSError as error:
            raise WtrainError(
                f"the run directory cannot be opened: {error.strerror}",
                context=str(self.path),
                hint="wtrain ps -a lists all runs",
                reference="run-unopenable",
            ) from error

    def refuse_copy(self) -> None:
        """Raise WtrainError for a copy of a run: its files name the processes of the original."""
        original = original_of(self.path)
        if original is not None:
            raise WtrainError(
                f"this directory is a copy; the run itself is {original}",
                context=str(self.path),
                hint=f"name the run by its path: {original}; status, show and report read a copy",
                reference="run-copy",
            )

    def slot_dir(self) -> Path | None:
        """The slot directory as recorded, None if unknown."""
        try:
            with open_read(self.slot_dir_file) as file:
                text = file.read(4096).decode().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return Path(text) if text else None


def default_runs_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """`--runs-dir`, else WTRAIN_RUNS_DIR, else ./wtrain-runs; absolute."""
    chosen = option or os.environ.get("WTRAIN_RUNS_DIR") or RUNS_DIR
    return Path(os.path.expanduser(chosen)).absolute()


def runs_in(runs_dir: Path) -> tuple[RunDirectory, ...]:
    """The runs of a place, oldest first."""
    found = []
    try:
        with os.scandir(runs_dir) as entries:
            for count, entry in enumerate(entries):
                if count >= _RUNS_LISTED:
                    break
                if _RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    found.append(RunDirectory(Path(entry.path)))
    except OSError:
        return ()
    return newest_last(found)


def newest_last(runs: Iterable[RunDirectory]) -> tuple[RunDirectory, ...]:
    """Runs by the time in their id; `latest` decides among those of one second."""

    def age(run: RunDirectory) -> tuple[str, bool, str]:
        return run.stamp, latest_target(run.path.parent) == run.run_id, run.run_id

    return tuple(sorted(runs, key=age))


def latest_target(runs_dir: Path) -> str | None:
    latest = runs_dir / LATEST
    try:
        if latest.is_symlink():
            target = os.readlink(latest)
        else:
            with open_read(latest) as file:
                target = file.read(256).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return target.strip() or None


_IDENTITY_FILE = "identity.json"
_IDENTITY_CAP_BYTES = 65_536


class _Identity(Value):
    """Distinguishes a run directory from a copy of it, which has the same id.

    Device numbers are not compared: a reboot or another mount of the same file server changes them.
    """

    id: str
    path: str
    """The run directory as the last supervisor found it."""


class _Pid(Value):
    """Of lock.json and of keeper.json."""

    pid: int | None = None
    keeper_pid: int | None = None


def sign(run_dir: Path) -> None:
    """Record where this run directory is, with an id if it has none; OSError if that fails."""
    known = _read_identity(run_dir)
    path = os.path.realpath(run_dir)
    if known is None or known.path != path:
        fresh = _Identity(id=known.id if known else os.urandom(16).hex(), path=path)
        replace_json(run_dir / _IDENTITY_FILE, fresh)


def original_of(run_dir: Path) -> Path | None:
    """The directory that this one is a copy of; None if it is the original, or unknown.

    The directory in which a living supervisor or keeper works is the original, wherever it is now.
    Otherwise the recorded one is, if it still exists with the same id.
    """
    known = _read_identity(run_dir)
    if known is None:
        return None
    for other in (*_in_use(run_dir), Path(known.path)):
        theirs = _read_identity(other)
        if theirs is not None and theirs.id == known.id:
            return None if _mark(other) == _mark(run_dir) else other
    return None


def _read_identity(run_dir: Path) -> _Identity | None:
    return read_json(run_dir / _IDENTITY_FILE, _Identity, cap_bytes=_IDENTITY_CAP_BYTES)


def _mark(run_dir: Path) -> tuple[int, ...]:
    """The same through every mount; a copy has inodes of its own, or was changed later."""
    try:
        about = (run_dir / _IDENTITY_FILE).stat()
        return run_dir.stat().st_ino, about.st_ino, about.st_ctime_ns
    except OSError:
        return ()


def _in_use(run_dir: Path) -> Iterator[Path]:
    """Run directories in which the supervisor and keeper recorded here have files open."""
    from watchdog_train.system import current  # without an identity no system is needed

    system = current()
    records = sorted((run_dir / "attempts").glob("*/keeper.json"))[-1:]
    for record in (run_dir / "lock.json", *records):
        named = read_json(record, _Pid, cap_bytes=_IDENTITY_CAP_BYTES) or _Pid()
        pid = named.keeper_pid or named.pid
        for path in (Path(file.name) for file in system.open_files(pid) or ()) if pid else ():
            if path.name == "lock":
                yield path.parent
            elif path.parent.parent.name == "attempts":
                yield path.parents[2]
