"""Make the directory of a new run, and find the one a user means.

Must not interpret what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.store.copies import sign
from watchdog_train.store.resolve import resolve, resolve_live
from watchdog_train.store.run_paths import LATEST, RunDirectory, default_runs_dir, runs_in
from watchdog_train.trusted_files import hold, make_folder, release, remove
from watchdog_train.whole_files import replace_whole

__all__ = [
    "RunDirectory",
    "clean_name",
    "create",
    "default_runs_dir",
    "name_from_command",
    "resolve",
    "resolve_live",
    "runs_in",
]

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


def _token_hex(size_bytes: int) -> str:
    """As secrets.token_hex, which takes 5 ms to import."""
    return os.urandom(size_bytes).hex()


def create(
    runs_dir: Path,
    name: str,
    now: float | None = None,
    token_hex: Callable[[int], str] = _token_hex,
) -> RunDirectory:
    """Make the directory of a new run and point `latest` at it.

    Args:
        runs_dir: where run directories go; made when missing.
        name: cleaned here.
        now: Unix seconds; local time becomes part of the id.
        token_hex: so many random bytes, in hexadecimal.

    Raises:
        WtrainError: the place is read-only, full or no directory.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    made: Path | None = None
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore_in_git(runs_dir)
        while made is None:
            path = runs_dir / f"{clean_name(name)}-{stamp}-{token_hex(2)}"
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
    """Keep run directories out of a repository.

    Raises:
        OSError: the place cannot be written.
    """
    with contextlib.suppress(FileExistsError), (runs_dir / ".gitignore").open("x") as file:
        file.write("*\n")


def refuse_full(path: Path) -> None:
    """Fail now rather than at the next event: folders can be made on a full disk, data not.

    Raises:
        OSError: nothing can be written there.
    """
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
