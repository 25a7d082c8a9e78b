"""What every format answers: where its checkpoints are, which is newest, whether one is whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

from watchdog_train.checkpoints.files import DamagedError, Listing, Sizes
from watchdog_train.core.model import Value

Level = Literal["quick", "full"]

_DELIMITED = re.compile(
    r"(?P<word>[A-Za-z]*)(?P<mark>[-_=. ]*)(?<![0-9.])(?P<number>\d{1,12})(?![0-9A-Za-z]|\.\d)"
)
_STEP_WORDS = frozenset(("step", "steps", "iter", "iters", "iteration", "it", "global"))
_OTHER_WORDS = frozenset(("ckpt", "checkpoint", "epoch", "epochs", "ep", "e"))
_EPOCH_WORDS = frozenset(("epoch", "epochs", "ep", "e"))


class Candidate(Value):
    """Something that may be a checkpoint."""

    path: str
    format: str
    step: int | None
    order: int | None
    """A number that grows from checkpoint to checkpoint: the step, or an epoch in a file name."""
    files: Sizes
    recorded: bool = False
    """The save hook noted a save to this path."""
    stage: int = 0
    """Which training into its directory has written it, 0 where that is not known."""
    of_running: bool = False
    """Of the training that ran when the attempt ended."""

    @property
    def mtime_ns(self) -> int:
        """When the newest of its files was written."""
        return max((mtime_ns for _, mtime_ns in self.files.values()), default=0)


class Verdict(Value):
    """Whether a checkpoint is whole. None: cannot be told."""

    whole: bool | None
    why: str
    how_checked: str


class Limits(Value):
    """What a check may cost, and what it may know."""

    level: Level
    time_left: Callable[[], float]
    """Seconds left for reading whole files."""
    world_size: int | None = None


class Format(Protocol):
    """One checkpoint format. A plugin may add one."""

    name: str
    owns_directory: bool
    """A directory that is a checkpoint of this format holds no other checkpoints."""
    resume_hint: str
    """How a training is told to resume from one, {checkpoint} stands for the path."""

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """The checkpoints in a directory, or the directory itself if it is one."""

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Candidates of one directory as the framework orders them: the first is its "latest"."""

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Whether it is whole. Never unpickles, never writes."""


def directory_candidate(
    listing: Listing, name: str, belongs: Callable[[str], bool]
) -> tuple[Candidate, ...]:
    """The directory itself as a checkpoint of a format, if files in it belong to that format."""
    files = {
        entry.name: (entry.size, entry.mtime_ns)
        for entry in listing.entries
        if entry.kind == "file" and belongs(entry.name)
    }
    if not files:
        return ()
    step, order = number_in_name(os.path.basename(listing.path))
    return (Candidate(path=listing.path, format=name, step=step, order=order, files=files),)


def doubts_of(verdicts: Iterable[tuple[str, Verdict]]) -> list[str]:
    """What could not be told of the named parts of a checkpoint, in words.

    Raises:
        DamagedError: one of them is not whole; the text names it.
    """
    doubts = []
    for name, verdict in verdicts:
        if verdict.whole is False:
            raise DamagedError(f"{name}: {verdict.why}")
        if verdict.whole is None:
            doubts.append(f"{name}: {verdict.why}")
    return doubts


def lowest_level(verdicts: Iterable[tuple[str, Verdict]]) -> Level:
    """How deep all parts were looked into: as deep as the least of them."""
    return "full" if all(verdict.how_checked == "full" for _, verdict in verdicts) else "quick"


def stale_words(
    witness: str, times: tuple[int, int] | None, closed: Mapping[str, int]
) -> str | None:
    """Why a file that is written last may be of an older save: one that it closes is newer.

    Args:
        witness: its name.
        times: its size and mtime in nanoseconds, None where it is missing.
        closed: mtimes of the files written before it, by name.
    """
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


def number_in_name(stem: str) -> tuple[int | None, int | None]:
    """The (step, order) that a file name tells: `epoch_3` gives (None, 3), `resnet50` nothing."""
    step = order = epoch = None
    for match in _DELIMITED.finditer(stem):
        word, number = match["word"].lower(), int(match["number"])
        if word in _STEP_WORDS:
            return number, number
        if not match["mark"] and word and word not in _OTHER_WORDS:
            continue
        if word in _EPOCH_WORDS:
            epoch = number
        else:
            step = number
    if epoch is not None:
        return None, epoch
    order = step
    return step, order


def by_number_then_time(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Newest first: by number, then by time; one without a number stands where its time puts it.

    Once the save hook has noted a save into a directory, older files there that it has not noted
    were not written by this training, whatever number is in their names.
    """
    noted_ns = max((item.mtime_ns for item in candidates if item.recorded), default=0)
    foreign = [item for item in candidates if not item.recorded and item.mtime_ns < noted_ns]
    ours = [item for item in candidates if item.recorded or item.mtime_ns >= noted_ns]
    return (*_merged(ours), *_merged(foreign))


def _merged(candidates: list[Candidate]) -> list[Candidate]:
    numbered = sorted(
        (item for item in candidates if item.order is not None),
        key=lambda item: (item.order or 0, item.mtime_ns),
    )
    plain = sorted(
        (item for item in candidates if item.order is None), key=lambda item: item.mtime_ns
    )
    result = []
    while numbered or plain:
        take_plain = plain and (not numbered or plain[-1].mtime_ns > numbered[-1].mtime_ns)
        result.append(plain.pop() if take_plain else numbered.pop())
    return result
