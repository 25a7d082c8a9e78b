"""Where the files of a run are, how a run directory is made, and which one a user means.

Must not interpret what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.store.places import private_runtime_directory

RUNS_DIR = "wtrain-runs"
LATEST = "latest"
_RUN_ID = re.compile(r"(?P<name>.+)-(?P<stamp>\d{8}-\d{6})-(?P<tail>[0-9a-f]{4})")
_NAME_LIMIT = 64
_RUNS_LISTED = 100_000
_PROBE_BYTES = 65_536
_SCRIPT_SUFFIXES = (".py", ".pyw", ".sh", ".ipynb")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def name(self) -> str:
        """The run's name, without time and tail."""
        match = _RUN_ID.fullmatch(self.run_id)
        return match["name"] if match else self.run_id

    @property
    def stamp(self) -> str:
        """`yyyymmdd-hhmmss` of its creation, "" for a directory with a name of its own."""
        match = _RUN_ID.fullmatch(self.run_id)
        return match["stamp"] if match else ""

    @property
    def events(self) -> Path:
        """The event log."""
        return self.path / "events.jsonl"

    @property
    def config(self) -> Path:
        """The settings in effect."""
        return self.path / "config.yaml"

    @property
    def lock(self) -> Path:
        """Held by the supervisor of this run."""
        return self.path / "lock"

    @property
    def slot_dir_file(self) -> Path:
        """Text file that holds the path of the slot directory."""
        return self.path / "slot_dir"

    @property
    def requests(self) -> Path:
        """Where commands leave requests for the supervisor."""
        return self.path / "requests"

    @property
    def attempts(self) -> Path:
        """One folder per attempt."""
        return self.path / "attempts"

    @property
    def stalls(self) -> Path:
        """One folder per evidence bundle."""
        return self.path / "stalls"

    @property
    def spill_dir(self) -> Path | None:
        """Local memory for events that the disk does not take; None where there is no safe place.

        Not inside the slot directory: that one is removed with the run.
        """
        return private_runtime_directory("spill", self.run_id)

    def attempt(self, number: int) -> Path:
        """The folder of an attempt, 1-based."""
        return self.attempts / f"{number:04d}"

    def plan(self, number: int) -> Path:
        """The plan of an attempt."""
        return self.attempt(number) / "plan.json"

    def stall(self, stall_id: str) -> Path:
        """The bundle with this id."""
        return self.stalls / stall_id

    def slot_dir(self) -> Path | None:
        """The slot directory as recorded, None when it is not known."""
        try:
            with self.slot_dir_file.open(encoding="utf-8") as file:
                text = file.read(4096).strip()
        except (OSError, UnicodeDecodeError):
            return None
        return Path(text) if text else None


def default_runs_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """`--runs-dir`, else WTRAIN_RUNS_DIR, else ./wtrain-runs; absolute."""
    chosen = option or os.environ.get("WTRAIN_RUNS_DIR") or RUNS_DIR
    return Path(chosen).expanduser().absolute()


def clean_name(text: str) -> str:
    """A name that is safe as part of a folder's name on every system."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:_NAME_LIMIT].strip("-.")
    return name or "run"


def name_from_command(argv: Sequence[str]) -> str:
    """The script's name: `torchrun --nproc 2 train.py` and `python -m train` both give train."""
    for word in argv:
        if word.endswith(_SCRIPT_SUFFIXES):
            return clean_name(Path(word.replace("\\", "/")).stem)
    for word, following in itertools.pairwise(argv):
        if word in {"-m", "--module"}:
            return clean_name(following.rpartition(".")[2])
    program = Path(argv[0].replace("\\", "/")).name if argv else ""
    return clean_name(program.removesuffix(".exe"))


def create(
    runs_dir: Path,
    name: str,
    now: float | None = None,
    token_hex: Callable[[int], str] = secrets.token_hex,
) -> RunDirectory:
    """Make the directory of a new run and point `latest` at it.

    Args:
        runs_dir: where run directories go; made when missing.
        name: cleaned here.
        now: Unix seconds; local time becomes part of the id.
        token_hex: as secrets.token_hex.

    Raises:
        WtrainError: the place is read-only, full or no directory.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    made: Path | None = None
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _ignore_in_git(runs_dir)
        while made is None:
            path = runs_dir / f"{clean_name(name)}-{stamp}-{token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                made = path
        run = RunDirectory(made)
        for folder in (run.attempts, run.stalls, run.requests):
            folder.mkdir(mode=0o700)
        _probe(run.path)
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise _cannot_create(runs_dir, error) from error
    _point_latest(runs_dir, run.run_id)
    return run


def _cannot_create(runs_dir: Path, error: OSError) -> WtrainError:
    words = {
        errno.EROFS: "is on a read-only file system",
        errno.EACCES: "may not be written by this user",
        errno.EPERM: "may not be written by this user",
        errno.ENOSPC: "is on a full disk",
        errno.EDQUOT: "is over its disk quota",
        errno.ENOTDIR: "is not a directory",
        errno.EEXIST: "is not a directory",
    }
    why = words.get(error.errno or 0, f"cannot be used: {error.strerror or error}")
    return WtrainError(
        f"the place for run directories {why}",
        context=str(runs_dir),
        hint="choose another place with --runs-dir DIR or WTRAIN_RUNS_DIR",
        reference="runs-dir-unusable",
    )


def _ignore_in_git(runs_dir: Path) -> None:
    with contextlib.suppress(FileExistsError), (runs_dir / ".gitignore").open("x") as file:
        file.write("*\n")


def _probe(path: Path) -> None:
    """Fail now rather than at the first event: folders can be made on a full disk, data not."""
    probe = path / ".probe"
    probe.write_bytes(bytes(range(256)) * (_PROBE_BYTES // 256))
    probe.unlink()


def _point_latest(runs_dir: Path, run_id: str) -> None:
    """A link where links work, else a file with the name; a convenience, so never an error."""
    latest = runs_dir / LATEST
    fresh = runs_dir / f".{LATEST}-{run_id}"
    with contextlib.suppress(OSError):
        try:
            fresh.symlink_to(run_id, target_is_directory=True)
        except (OSError, NotImplementedError):
            fresh.write_text(run_id + "\n", encoding="utf-8")
        try:
            fresh.replace(latest)
        except OSError:
            fresh.unlink(missing_ok=True)


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
    """Runs by the time in their id; among those of one second `latest` knows which came last."""
    return tuple(sorted(runs, key=lambda run: (run.stamp, _is_latest(run), run.run_id)))


def _is_latest(run: RunDirectory) -> bool:
    return latest_target(run.path.parent) == run.run_id


def latest_target(runs_dir: Path) -> str | None:
    """The id that `latest` of this place points at."""
    latest = runs_dir / LATEST
    try:
        target = os.readlink(latest) if latest.is_symlink() else latest.read_text("utf-8")[:256]
    except (OSError, UnicodeDecodeError):
        return None
    return target.strip() or None
