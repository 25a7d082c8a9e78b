"""Where a training keeps its checkpoints, found without asking it. Reads directories only."""

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest

from watchdog_train.checkpoints import disk, torch_zip
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.registry import OURS, Formats
from watchdog_train.core.model import SaveRecord, Survey

DEPTH = 3
"""Levels of directories that are scanned below a given one."""
_LINKED_CAP = 1_000
_ANSWERS = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors for a place that is missing or forbidden; others are failures of the file system."""
_ARGUMENTS = re.compile(
    r"(output|save|ckpt|checkpoint)_(dir|path|folder)|checkpoints?|(out|output|save|work)dir"
    r"|(out|checkpoints|checkpoint_output|work|project|results?|run|exp|log|logging|model)_dir"
    r"|default_root_dir"
)
"""Names of options, without dashes, for output paths."""


def place_options(argv: Sequence[str], cwd: str) -> tuple[str, ...]:
    """Paths in known options: `--output-dir out`, `--output_dir=out`, `out_dir=o`."""
    found = []
    for word, following in zip_longest(argv, argv[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        plain = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
        if not _ARGUMENTS.fullmatch(plain) or not (equals or word.startswith("-")):
            continue
        value = value if equals else following
        if value and not value.startswith("-"):
            found.append(os.path.normpath(os.path.join(cwd, os.path.expanduser(value))))
    return tuple(found)


def directories_in_arguments(argv: Sequence[str], cwd: str) -> tuple[str, ...]:
    paths = place_options(argv, cwd)
    return tuple(dict.fromkeys(os.path.dirname(p) if os.path.isfile(p) else p for p in paths))


def places(
    directories: Iterable[str], saves: Iterable[SaveRecord], argv: Sequence[str], cwd: str
) -> tuple[str, ...]:
    """Every directory to scan, the best known first, each once."""
    found = [os.path.normpath(os.path.join(cwd, directory)) for directory in directories]
    for record in saves:
        folder = os.path.dirname(record.path)
        found += [record.output_dir or folder, folder]
    found += directories_in_arguments(argv, cwd)
    return tuple(dict.fromkeys(filter(os.path.isabs, found)))


def find_candidates(
    directories: Iterable[str],
    *,
    most_depth: int = DEPTH,
    noted: Iterable[SaveRecord] = (),
    formats: Formats = OURS,
) -> tuple[tuple[Candidate, ...], Survey]:
    """Walk the directories level by level, up to a depth and DIRECTORY_CAP entries in all.

    The scan is without findings. It has failed if a place gave an error other than "not there" and
    "not allowed": it may hold checkpoints. Noted ones are looked up separately: their names need
    not be those of checkpoints.

    A linked directory is entered only if it is itself a checkpoint: a link to a data set would use
    up the limit, and links can form loops.
    """
    looked = tuple(directory for directory in directories if _may_be_directory(directory))
    pending = deque((directory, 0, False) for directory in looked)
    candidates: dict[str, Candidate] = {}
    seen: set[tuple[int, int]] = set()
    left, problem, failed, cut = disk.DIRECTORY_CAP, None, False, False
    while pending and not cut:
        directory, depth, linked = pending.popleft()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            listing = disk.list_directory(directory, min(left, _LINKED_CAP) if linked else left)
        except (disk.UnreadableError, OSError) as error:
            problem = problem or f"{directory} cannot be read: {error}"
            failed = failed or _is_trouble(error)
            continue
        own, owned = _candidates_of(listing, linked, formats)
        for candidate in own:
            candidates.setdefault(candidate.path, candidate)
        left -= len(listing.entries)
        if left <= 0 or (listing.cut and not linked):
            looked_at = f"only the newest {disk.DIRECTORY_CAP} entries were looked at"
            problem = f"{looked_at}, up to {directory}"
            cut = True
        elif not owned and not linked and depth < most_depth:
            inside = [one for one in listing.entries if one.is_directory]
            # Real ones first, so that a link to one is the duplicate.
            for one in sorted(inside, key=lambda entry: entry.link):
                if disk.is_entered(one.name):
                    pending.append((os.path.join(directory, one.name), depth + 1, one.link))
    within = _inside(looked)
    known = _inside(path for path, one in candidates.items() if one.format in OURS.by_name)
    for save in noted:
        (path,) = _inside((save.path,))
        if path.startswith(known) or not path.startswith(within):
            continue
        with suppress(disk.UnreadableError):
            listing = disk.list_one(save.path)
            own = _candidates_of(listing, False, formats)[0] if cut else []
            if not own and torch_zip.may_be_one(save):
                own = [torch_zip.as_candidate(listing, entry) for entry in listing.entries]
            for candidate in own:
                candidates.setdefault(candidate.path, candidate)
    found = Survey(findings=(), directories=looked, problem=problem, cut=cut, failed=failed)
    return tuple(candidates.values()), found


def _inside(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)


def _may_be_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        return _is_trouble(error)


def _is_trouble(error: Exception) -> bool:
    cause = error.__cause__ if isinstance(error, disk.UnreadableError) else error
    return isinstance(cause, OSError) and cause.errno not in _ANSWERS


def _candidates_of(
    listing: disk.Listing, linked: bool, formats: Formats
) -> tuple[list[Candidate], bool]:
    """The checkpoints of one directory, and whether it is itself one of a format of wtrain."""
    found: list[Candidate] = []
    for item in formats.by_name.values():
        if linked and not item.owns_directory:
            continue
        own = item.find(listing)
        if own and item.owns_directory and item.name in OURS.by_name:
            return list(own), True
        found += own
    return found, False
