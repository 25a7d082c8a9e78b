"""How ranks stand to each other by their stacks: who waits in which collective, and who does not.

Pure. The majority is the victim: a rank that is in no collective while the others wait in one is
the lead. Groups of similar size are not forced into one culprit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import Frame, frame_matches, own_frames
from watchdog_train.explain import frame_sets

Standing = Literal[
    "alone", "different-operations", "partly-named", "different-places", "some-left", "same", "none"
]


class _Wait(NamedTuple):
    """The collective that a rank is in, or something that hides one."""

    operation: str | None = None
    """By its plain name: `allreduce`."""
    site: str | None = None
    """The caller of the collective."""


def standings(
    processes: Sequence[ProcessEvidence], *, several: bool = True
) -> tuple[Standing, frozenset[tuple[int, int]]]:
    """How the ranks with stacks compare, and those in no collective while others wait in one.

    Args:
        processes: of the evidence.
        several: there may be a process group; else a backward pass waits for nobody.
    """
    ranks = [process for process in processes if process.role == "rank"]
    gone = {rank.identity for rank in ranks if rank.state in ("Z", "X")}
    seen = [rank for rank in ranks if any(thread.frames for thread in rank.threads)]
    waits = {rank.identity: _wait(rank, several=several) for rank in seen}
    if not any(waits.values()):
        waits = {rank.identity: _Wait() if dismantles(rank) else None for rank in seen}
    waiting = [wait for wait in waits.values() if wait is not None]
    left = gone | {identity for identity, wait in waits.items() if wait is None}
    named = [wait.operation for wait in waiting if wait.operation]
    standing: Standing = "same"
    if not waiting:
        standing = "none" if len(seen) > 1 else "alone"
    elif len(seen) + len(gone) < 2:
        standing = "alone"
    elif left:
        return "some-left", frozenset(left)
    elif len(set(named)) > 1:
        standing = "different-operations"
    elif named and len(named) < len(waiting):
        standing = "partly-named"
    elif len({wait.site for wait in waiting if wait.site}) > 1:
        standing = "different-places"
    return standing, frozenset()


def _wait(process: ProcessEvidence, *, several: bool) -> _Wait | None:
    """Of the main thread first; a collective in an unnamed thread counts for its rank, too."""
    hiding = None
    hides = f"{frame_sets.WAITS_FOR_RANKS} || {frame_sets.SYNCHRONISES}"
    hides += f" || {frame_sets.BACKWARD}" if several else ""
    for thread in sorted(process.threads, key=lambda thread: not thread.main):
        if not thread.frames or is_idle_helper(thread):
            continue
        frames = own_frames(thread.frames)
        for at, frame in enumerate(frames):
            if frame_matches(frame_sets.COLLECTIVE, frame):
                return _Wait(plain_operation(frame.name), _site(frames[at + 1 :]))
        if any(frame_matches(hides, frame) for frame in frames):
            hiding = _Wait()
    return hiding


def dismantles(process: ProcessEvidence) -> bool:
    """It takes its process group apart, which waits for all ranks unless they wait for it."""
    main = process.main
    dismantling = frame_sets.DISMANTLES_GROUP
    return main is not None and any(frame_matches(dismantling, frame) for frame in main.frames)


_LIBRARY = re.compile(r"\A(?:nccl|p?mpi_)")


_OF_SCRIPTS = ("reducedict", "reduceloss", "reducetensor", "reduceval", "reducemean", "average")
"""What many a script calls its own function around an all-reduce."""


def plain_operation(name: str) -> str:
    """`all_gather` for `_all_gather_base`, `all_gather_into_tensor` and NCCL's `allgather`."""
    text = _LIBRARY.sub("", name.rpartition("::")[2].lower()).replace("_", "")
    if text.startswith(_OF_SCRIPTS):
        return "allreduce"
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
