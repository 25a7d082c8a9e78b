"""What every format answers: which checkpoints a directory holds, and whether one is valid.

A check raises DamagedError or UnreadableError; judged() makes a verdict of it.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Literal

from watchdog_train.checkpoints.disk import (
    DamagedError,
    Entry,
    Listing,
    Sizes,
    UnreadableError,
    sizes_of,
)
from watchdog_train.checkpoints.names import step_in_name
from watchdog_train.core.model import Value, Whose

Level = Literal["quick", "full"]


class Candidate(Value):
    path: str
    format: str
    step: int | None
    files: Sizes
    noted: tuple[int, float] | None = None
    """Attempt and Unix time of the save that the hook noted."""
    recorded: bool | None = None
    """Whether its files are as the hook noted them; None: it has noted none."""
    whose: Whose = Whose()
    of_running: bool = False
    """Of the training that ran when the attempt ended."""
    counters: dict[str, int] | None = None
    """Step and epoch in its dictionary, by their names; None: not read."""
    is_weights: bool = False
    """Its dictionary holds weights and nothing else of a training."""
    copy_of: str | None = None
    """The torn file whose kept copy this is."""

    @property
    def mtime_ns(self) -> int:
        """When the newest of its files was written; 0 without files."""
        return max((mtime_ns for _, mtime_ns in self.files.values()), default=0)


class Verdict(Value):
    """Whether a checkpoint is valid. None: unknown."""

    whole: bool | None
    why: str
    how_checked: str = "quick"


class Limits(Value):
    """What a check may cost, and what it may know."""

    level: Level
    time_left: Callable[[], float]
    """Seconds left for complete reads of files."""
    world_size: int | None = None


class Format(Value):
    name: str
    resume_hint: str
    """How a training is made to resume from one, {checkpoint} stands for the path."""
    owns_directory: bool = False
    """A directory that is a checkpoint of this format holds no other checkpoints."""
    find: Callable[[Listing], tuple[Candidate, ...]]
    """The checkpoints in a directory, or the directory itself if it is one."""
    check: Callable[[Candidate, Limits], Verdict]
    """Whether it is valid: see `judged`. Never unpickles, never writes."""
    key: Callable[[Candidate], tuple[int, ...]] | None = None
    """The higher, the newer, as the framework orders them; None: see checkpoints.order."""


def a_file(listing: Listing, entry: Entry, name: str, step: int | None) -> Candidate:
    files = {entry.name: (entry.size, entry.mtime_ns)}
    return Candidate(
        path=os.path.join(listing.path, entry.name), format=name, step=step, files=files
    )


def a_directory(
    listing: Listing, name: str, files: Sizes, step: int | None = None
) -> tuple[Candidate, ...]:
    """The directory itself as a checkpoint of a format, if it has files of it."""
    step = step_in_name(os.path.basename(listing.path)) if step is None else step
    return (Candidate(path=listing.path, format=name, step=step, files=files),) if files else ()


def numbered_directory(
    listing: Listing, name: str, directory: re.Pattern[str], familiar: re.Pattern[str]
) -> tuple[Candidate, ...]:
    """The directory itself, if its name and contents are the framework's; it may be empty."""
    match, names = directory.match(os.path.basename(listing.path)), listing.names
    if match is None or (names and not any(map(familiar.match, names))):
        return ()
    files, step = sizes_of(listing.path), int(match[1])
    return (Candidate(path=listing.path, format=name, step=step, files=files),)


def by_step(candidate: Candidate) -> tuple[int, ...]:
    return candidate.step or 0, candidate.mtime_ns


def judged(check: Callable[[], Verdict]) -> Verdict:
    """The verdict of a check that raises if a file is damaged or unreadable."""
    try:
        return check()
    except DamagedError as error:
        return Verdict(whole=False, why=str(error))
    except (UnreadableError, OSError) as error:
        return Verdict(whole=None, why=f"it cannot be checked: {error}")


Part = tuple[str, Callable[[], Verdict]]
_WITHOUT_CHECKSUMS = (".safetensors", ".json")


def of_parts(
    parts: Iterable[Part], level: Level, why: str, doubts: Iterable[str | None] = ()
) -> Verdict:
    """The verdict on a checkpoint of several parts; its level is the lowest of theirs.

    `why` is the reason if all are valid. A DamagedError names the part that is not.
    """
    found = list(filter(None, doubts))
    for name, check in parts:
        verdict = judged(check)
        if verdict.whole is False:
            raise DamagedError(f"{name}: {verdict.why}")
        if verdict.whole is None:
            found.append(f"{name}: {verdict.why}")
        if verdict.how_checked == "quick" and not name.endswith(_WITHOUT_CHECKSUMS):
            level = "quick"
    why = "; ".join(found[:5]) or why
    return Verdict(whole=None if found else True, why=why, how_checked=level)


def refuse_unfinished(files: Iterable[str]) -> None:
    """DamagedError if a file that is renamed once complete still has its first name."""
    unfinished = sorted(name for name in files if name.endswith(".tmp"))
    if unfinished:
        raise DamagedError(f"{unfinished[0]} is there: a file that was still being written")


def refuse_missing_ranks(ranks: set[int], least: int, name: str) -> None:
    """DamagedError if a rank has not saved its own file: `name` with {} for the rank."""
    expected = max(*ranks, least - 1) + 1
    lacking = sorted(set(range(expected)).difference(ranks))
    if lacking:
        missing = name.format(lacking[0])
        raise DamagedError(f"{missing} is missing: {len(ranks)} of {expected} ranks have saved")


def stale_words(
    witness: str,
    times: tuple[int, int] | None,
    files: Sizes,
    closes: Callable[[str], object] = bool,
) -> str | None:
    """Why a file that is written last may be of an older save: one that it closes is newer.

    `times` are its size and mtime in nanoseconds, None if it is missing.
    """
    closed = {name: mtime_ns for name, (_, mtime_ns) in files.items() if closes(name)}
    if times is None or not closed:
        return None
    newest = max(closed, key=lambda name: closed[name])
    age_s = (closed[newest] - times[1]) / 1e9
    if age_s <= 0:
        return None
    return (
        f"{witness} is {age_s:.1f} s older than {newest}: "
        "a later save over this directory may not have finished"
    )
