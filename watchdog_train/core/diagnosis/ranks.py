"""How ranks stand to each other by their stacks: who waits in which collective, and who does not.

Pure. The majority is the victim: a rank that is in no collective while the others wait in one is
the lead. Groups of similar size are not forced into one culprit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack, frame_matches, own_frames
from watchdog_train.core.model import Value

Standing = Literal[
    "alone", "different-operations", "partly-named", "different-places", "some-left", "same", "none"
]

COLLECTIVE = "collective"
"""Set of frames that name an operation."""
HIDING = ("waits-for-ranks", "backward", "synchronises")
"""Sets of frames that wait for other ranks without naming the operation."""
Frames = Mapping[str, str]
"""Name of a set -> one pattern for all of it."""


class RankPlace(Value, frozen=True, kw_only=True):
    """Where one rank is, as far as other ranks are concerned."""

    process: ProcessEvidence
    thread: ThreadStack | None
    operation: str | None
    """The collective it is in, by its plain name: `all_reduce`."""
    waits: bool
    """In a collective, or in something that hides one."""
    site: str | None
    """The caller of the collective."""


class Standings(Value, frozen=True, kw_only=True):
    """All ranks of the evidence compared."""

    standing: Standing
    places: tuple[RankPlace, ...]
    odd: frozenset[tuple[int, int]]
    """Identities of the ranks that are in no collective while others wait in one."""
    words: tuple[str, ...]


def standings(processes: Sequence[ProcessEvidence], frames: Frames) -> Standings:
    """Compares the ranks whose stacks were captured."""
    places = tuple(
        _place(process, frames)
        for process in processes
        if process.role == "rank" and any(thread.frames for thread in process.threads)
    )
    gone = [p for p in processes if p.role == "rank" and p.state in ("Z", "X")]
    waiting = [one for one in places if one.waits]
    left = [one for one in places if not one.waits]
    named = Counter(one.operation for one in waiting if one.operation)
    standing: Standing
    if not waiting:
        standing = "none" if len(places) > 1 else "alone"
    elif len(places) + len(gone) < 2:
        standing = "alone"
    elif left or gone:
        standing = "some-left"
    elif len(named) > 1:
        standing = "different-operations"
    elif named and sum(named.values()) < len(waiting):
        standing = "partly-named"
    elif len({one.site for one in waiting if one.site}) > 1:
        standing = "different-places"
    else:
        standing = "same"
    odd = frozenset(one.process.identity for one in left) | {one.identity for one in gone}
    return Standings(
        standing=standing,
        places=places,
        odd=odd if standing == "some-left" else frozenset(),
        words=_words(waiting),
    )


def _place(process: ProcessEvidence, sets: Frames) -> RankPlace:
    """Of the main thread first; a collective in an unnamed thread counts for its rank, too."""
    threads = sorted(process.threads, key=lambda thread: not thread.main)
    hiding: ThreadStack | None = None
    for thread in threads:
        if not thread.frames or is_idle_helper(thread):
            continue
        frames = own_frames(thread.frames)
        operation = _operation(frames, sets.get(COLLECTIVE, ""))
        if operation is not None:
            name, site = operation
            return RankPlace(process=process, thread=thread, operation=name, waits=True, site=site)
        if hiding is None and any(_any(sets.get(name, ""), frames) for name in HIDING):
            hiding = thread
    return RankPlace(
        process=process,
        thread=hiding or process.main,
        operation=None,
        waits=hiding is not None,
        site=None,
    )


def _any(pattern: str, frames: Sequence[Frame]) -> bool:
    return bool(pattern) and any(frame_matches(pattern, frame) for frame in frames)


def _operation(frames: Sequence[Frame], pattern: str) -> tuple[str, str | None] | None:
    for position, frame in enumerate(frames):
        if pattern and frame_matches(pattern, frame):
            return plain_operation(frame.name), _site(frames[position + 1 :])
    return None


_LIBRARY = re.compile(r"\A(?:nccl|p?mpi_)")


def plain_operation(name: str) -> str:
    """`all_gather` for `_all_gather_base`, `all_gather_into_tensor` and NCCL's `allgather`."""
    text = _LIBRARY.sub("", name.rpartition("::")[2].lower()).replace("_", "")
    if "send" in text or "recv" in text:
        return "send or receive"  # one rank sends what another receives: that is no difference
    for suffix in ("intotensor", "tensor", "base", "coalesced", "object", "objectlist", "opts"):
        text = text.removesuffix(suffix)
    return text


_WRAPPERS = (
    "* (torch/distributed/*|torch/_ops.py|torch/utils/_contextlib.py|contextlib.py|"
    "torch/autograd/*|deepspeed/comm/*)"
)


def _site(callers: Sequence[Frame]) -> str | None:
    """The first caller that is no wrapper of the library."""
    for frame in callers:
        if not frame.native and not frame_matches(_WRAPPERS, frame):
            return f"{frame.name} ({frame.short})"
    return None


def _words(waiting: Sequence[RankPlace]) -> tuple[str, ...]:
    groups: dict[str, list[str]] = {}
    for one in waiting:
        text = one.operation or "a wait that hides the operation"
        text += f" under {one.site}" if one.site else ""
        groups.setdefault(text, []).append(one.process.label)
    return tuple(f"{', '.join(labels[:8])}: {text}" for text, labels in groups.items())[:8]
