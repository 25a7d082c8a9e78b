"""Make the directory of a new run, and resolve references to runs.

Must not interpret the files of a run.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.store.lock import is_held
from watchdog_train.store.registry import live_runs
from watchdog_train.store.run_paths import (
    LATEST,
    RunDirectory,
    default_runs_dir,
    latest_target,
    newest_last,
    runs_in,
    sign,
)
from watchdog_train.trusted_files import distrusted, hold, make_folder, release, remove
from watchdog_train.whole_files import replace_whole

_NAME_LIMIT = 64
_PROBE_BYTES = 65_536
_SCRIPT_SUFFIXES = (".py", ".pyw", ".sh", ".ipynb")


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
    tail: Callable[[], str] = lambda: os.urandom(2).hex(),
) -> RunDirectory:
    """Make the directory of a new run and point `latest` at it; `now` in Unix seconds.

    WtrainError: the place is read-only, full or no directory.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    made: Path | None = None
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore_in_git(runs_dir)
        while made is None:
            path = runs_dir / f"{clean_name(name)}-{stamp}-{tail()}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                made = path
        hold(made)
        run = RunDirectory(made)
        for folder in (run.attempts, run.stalls, run.requests):
            make_folder(folder)
        refuse_full(run.path)
        sign(run.path)
    except OSError as error:
        if made is not None:
            release(made)
            shutil.rmtree(made, ignore_errors=True)
        raise _cannot_create(runs_dir, error) from error
    point_latest(runs_dir, run.run_id)
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


def ignore_in_git(runs_dir: Path) -> None:
    """Keep run directories out of a repository; OSError if the place cannot be written."""
    with contextlib.suppress(FileExistsError), (runs_dir / ".gitignore").open("x") as file:
        file.write("*\n")


def refuse_full(path: Path) -> None:
    """Raise OSError now rather than at the next event: a full disk takes folders, but no data."""
    probe = path / ".probe"
    hold(path)
    try:
        replace_whole(probe, bytes(range(256)) * (_PROBE_BYTES // 256))
    finally:
        with contextlib.suppress(OSError):
            remove(probe)


def point_latest(runs_dir: Path, run_id: str) -> None:
    """A link where links work, else a file with the name; a convenience, so never an error."""
    latest = runs_dir / LATEST
    fresh = runs_dir / f".{LATEST}-{run_id}"
    with contextlib.suppress(OSError):
        try:
            fresh.symlink_to(run_id, target_is_directory=True)
        except (OSError, NotImplementedError):
            replace_whole(fresh, f"{run_id}\n".encode())
        try:
            fresh.replace(latest)
        except OSError:
            fresh.unlink(missing_ok=True)


_CANDIDATES_SHOWN = 8
_CHARACTERS_SHOWN = 200


def resolve(run_ref: str | None, runs_dir: Path | None = None) -> RunDirectory:
    """The run of a reference, for commands that read.

    Args:
        run_ref: an exact id, else a name (its newest run), else a unique prefix of an id, else a
            path; None: the newest run here, else the newest live one of this machine. A caller
            that passes None names the run in its output.
        runs_dir: as given by --runs-dir; None: the default.

    Raises:
        WtrainError: unknown or ambiguous, with the candidates.
    """
    here = runs_in(runs_dir or default_runs_dir())
    live = tuple(entry.directory for entry in live_runs())
    if run_ref:
        return _named(run_ref, here, live)
    if here:
        # Another user may have put a run here: our own come first.
        return next((run for run in reversed(here) if _is_own(run.path)), here[-1])
    if live:
        return live[-1]
    raise WtrainError(
        "there is no run here, and none is running on this machine",
        context=str(runs_dir or default_runs_dir()),
        hint="start one with: wtrain run -- python train.py",
        reference="run-unknown",
    )


def resolve_live(run_ref: str | None, runs_dir: Path | None = None) -> RunDirectory:
    """The run for commands that act: without a reference the only live run here.

    WtrainError: unknown, of another user, or a copy; without a reference: no or several live runs.
    """
    run = resolve(run_ref, runs_dir) if run_ref else _only_live_one(runs_dir or default_runs_dir())
    run.hold()
    return run


def _only_live_one(place: Path) -> RunDirectory:
    """The live run of this directory: from the list of live runs, and by the locks that are held.

    The list can be missing: another XDG_STATE_HOME, or a home directory that was full.
    """
    listed = {_real(entry.directory.path) for entry in live_runs()}
    here = [
        run
        for run in runs_in(_real(place))
        if run.path in listed or (_is_own(run.path) and is_held(run.lock))
    ]
    if len(here) == 1:
        return here[0]
    if here:
        raise _ambiguous("several runs are live here; name the one you mean", None, here)
    raise none_here("no run is live in this directory", place)


def none_here(message: str, place: Path) -> WtrainError:
    """Names the live runs of other directories: to act on one, the user names it."""
    elsewhere = [f"{entry.run_id} (in {entry.directory.path.parent})" for entry in live_runs()]
    hint = "wtrain ps -a lists the ended ones"
    if elsewhere:
        hint = f"to act on a run of another directory, name it: {', '.join(elsewhere[-4:])}"
    return WtrainError(message, context=str(place), hint=hint, reference="run-unknown")


def _named(
    run_ref: str, here: tuple[RunDirectory, ...], live: tuple[RunDirectory, ...]
) -> RunDirectory:
    known = newest_last({_real(run.path): run for run in (*live, *here)}.values())

    def all_with(fits: Callable[[RunDirectory], bool]) -> list[RunDirectory]:
        return [run for run in here if fits(run)] or [run for run in known if fits(run)]

    # A name before a prefix: `sft` means the newest sft, not "sft-2026... or sft-2027...".
    exact = all_with(lambda run: run.run_id == run_ref)
    if exact := exact or all_with(lambda run: run.name == run_ref and bool(run.stamp)):
        return exact[-1]
    of_prefix = all_with(lambda run: run.run_id.startswith(run_ref))
    if len(of_prefix) == 1:
        return of_prefix[0]
    if of_prefix:
        raise _ambiguous(f"'{run_ref}' is the beginning of several runs", run_ref, of_prefix)
    with suppress(OSError, ValueError):  # too long for a path, a NUL
        if found := _by_path(Path(os.path.expanduser(run_ref))):
            return found
    shown = run_ref if len(run_ref) <= _CHARACTERS_SHOWN else f"{run_ref[:_CHARACTERS_SHOWN]}…"
    raise WtrainError(
        f"no run is called {shown!r}",
        context=run_ref if os.sep in run_ref and shown == run_ref else None,
        hint=_listed(known) or "wtrain ps -a lists all runs",
        reference="run-unknown",
    )


def _by_path(path: Path) -> RunDirectory | None:
    if path.is_file() and (target := latest_target(path.parent)) and path.name == "latest":
        path = path.parent / target
    if not path.is_dir():
        return None
    run = RunDirectory(_real(path))
    return run if run.events.exists() or run.stalls.is_dir() else None


def _is_own(path: Path) -> bool:
    with suppress(OSError):
        return distrusted(os.stat(path)) is None
    return False


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _ambiguous(
    message: str, run_ref: str | None, candidates: Iterable[RunDirectory]
) -> WtrainError:
    return WtrainError(
        message, context=run_ref, hint=_listed(candidates), reference="run-ambiguous"
    )


def _listed(candidates: Iterable[RunDirectory]) -> str:
    ids = [run.run_id for run in reversed(tuple(candidates))]
    if not ids:
        return ""
    more = f" and {len(ids) - _CANDIDATES_SHOWN} more" if len(ids) > _CANDIDATES_SHOWN else ""
    return "choose from: " + ", ".join(ids[:_CANDIDATES_SHOWN]) + more
