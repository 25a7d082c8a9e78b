"""Families of causes as data: what a file of them may say.

A family is library knowledge about a root that the graph has found. No reading of files and no
judging: `rules.load_rules` reads, `explain.because` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from watchdog_train.core.diagnosis.stacks import EITHER
from watchdog_train.core.model import DiagnosisKind, Value
from watchdog_train.core.model import explanation as x

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
OBJECTS = (
    "stopped", "terminal", "file", "file_lock", "disk", "sleep", "batch", "tcp", "pipe",
)  # fmt: skip
"""Waits whose object is known: of such a root only a family may speak that names the wait."""
SIGNALS = ("SIGBUS", "SIGKILL")
"""Ends with few causes: only a family that names the signal may speak of them."""
OF = (*OBJECTS, *SIGNALS, "any")
OF_PROCESSES = frozenset(
    {str(kind.__struct_config__.tag) for kind in get_args(x.Doing)}
    | {"rank", "rank0", "worker", "launcher", "other", "idle", "captured", "apart", "compiler"}
    | {"sealed", "held_at_fork", "forked", "spawned", "changed", "steady", "busy", "flat"}
    | {"running_now", "idle_now", "runnable", "uninterruptible", "holds_gil", "network_file"}
    | {"parallel_tokenizers", "serial_tokenizers"}
)
OF_THE_JOB = frozenset(
    {"crash", "stall", "manual", "stacks", "moving", "counts_steps", *SIGNALS}
    | {"alone", "different-operations", "partly-named", "different-places", "some-left", "same"}
    | {"none", "recorded-different-operation", "recorded-different-size", "recorded-behind"}
    | {"recorded-same", "records-agree", "first-collectives", "early-collectives", "tiny"}
    | {"rank0-recorded", "steps-differ", "oom-counted", "oom-possible"}
    | {"shm-full", "shm-free", "swaps", "memory-short", "overloaded", "gpu-shared"}
    | {"lock-owner-dead", "threads-share-group"}
)
PLACEHOLDERS = ("who", "frame", "line", "others", "orders")


class Part(Value, forbid_unknown_fields=True):
    """Base: an unknown key is an error."""


class Clause(Part):
    """One process, and one of its threads, fit all of this."""

    who: Literal["same", "parent", "child", "other", "any"] = "any"
    """In relation to the root; only among `others`."""
    absent: bool = False
    """No process may fit; only among `others`."""
    facts: tuple[str, ...] = ()
    """What it is and does, by words; `a|b`: one of them, `!a`: not."""
    thread: Literal["deciding", "any", "helper"] = "deciding"
    """any: also others that work; helper: also those that idle in every healthy run."""
    frames: tuple[str, ...] = ()
    """Frame patterns, outermost first, gaps allowed."""
    top: tuple[str, ...] = ()
    """One of these is among the innermost frames."""
    depth: Annotated[int, Meta(ge=1, le=50)] = 4
    """So many frames are the innermost ones."""
    without: tuple[str, ...] = ()
    """None of these is anywhere in the stack."""
    source: str | None = None
    """Regular expression for the text of the deciding line."""
    kernel: str | None = None
    """Regular expression for its place in the kernel."""


class Sign(Part):
    """One way to recognise a family; every part that is given must fit."""

    sure: Share
    """At best; see `explain.because` for what lowers it."""
    kind: DiagnosisKind | None = None
    root: Clause | None = None
    """Who stands still, or fails: never one that only waits for another."""
    waiter: Clause | None = None
    """Instead of `root`: somebody who waits, whoever the root is."""
    others: tuple[Clause, ...] = ()
    raised: Clause | None = None
    """The traceback of an exception that nobody caught goes through these frames."""
    when: tuple[str, ...] = ()
    """What is true of the job and the machine, by words as in `facts`."""
    log: tuple[str, ...] = ()
    """Regular expressions; one must be found in a line, and no progress after it."""
    at: Literal["anywhere", "early", "passed", "end", "stays"] = "anywhere"
    """early: the line may have progress after it; passed: each such line has it; end: it is the
    log's last; stays: it comes twice, and what it names has no number later."""
    also: tuple[str, ...] = ()
    """One of these, in any line."""
    unless: tuple[str, ...] = ()
    """None of these is in any line."""
    then: tuple[str, ...] = ()
    """One of these comes later than the line of `log`."""
    says: str | None = None
    """Instead of the family's sentence."""
    remedies: tuple[str, ...] | None = None
    """Instead of the family's."""


class FamilyRule(Part):
    """One family: a rule file holds one or a list of them."""

    family: str
    kind: DiagnosisKind
    of: tuple[str, ...] = ()
    """Waits with a known object, and signals, that it may explain; of other roots it may speak."""
    symptom: bool = False
    """A consequence that others print, too: an earlier line of another family is the cause."""
    beats: tuple[str, ...] = ()
    """Neighbours that this family explains away when it fits."""
    link: str | None = None
    """The public thread or source that it is known from."""
    remedies: tuple[str, ...] = ()
    says: str = ""
    """What is known about such a root: {who} {frame} {line} {others}."""
    signs: tuple[Sign, ...]


class FrameSets(Part):
    """Names for sets of frames, to be used as `@name` wherever a rule has a frame pattern."""

    frames: dict[str, tuple[str, ...]]


class Rules(msgspec.Struct, frozen=True):
    """All families that are known, and the sets of frames by name, each as one pattern."""

    families: tuple[FamilyRule, ...]
    frames: dict[str, str] = msgspec.field(default_factory=dict)


def with_sets(sign: Sign, sets: Mapping[str, str]) -> Sign:
    """The sign with `@name` replaced.

    Raises:
        KeyError: there is no set of this name.
    """

    def resolved(patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            EITHER.join(one(each.strip()) for each in pattern.split(EITHER.strip()))
            for pattern in patterns
        )

    def one(pattern: str) -> str:
        return sets[pattern[1:]] if pattern.startswith("@") else pattern

    def filled(clause: Clause) -> Clause:
        return msgspec.structs.replace(
            clause,
            frames=resolved(clause.frames),
            top=resolved(clause.top),
            without=resolved(clause.without),
        )

    return msgspec.structs.replace(
        sign,
        root=filled(sign.root) if sign.root else None,
        waiter=filled(sign.waiter) if sign.waiter else None,
        others=tuple(filled(clause) for clause in sign.others),
        raised=filled(sign.raised) if sign.raised else None,
    )
