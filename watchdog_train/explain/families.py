"""Families of causes as data: what a file of them may say, and the checks that need no file.

A family is library knowledge about a root that the graph has found. No reading of files and no
judging: `rules.load_rules` reads, `explain.because` judges.
"""

from __future__ import annotations

import re
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
_OF = (*OBJECTS, *SIGNALS, "any")
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
_PLACEHOLDER = re.compile(r"\{(\w*)\}")


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


def clauses(sign: Sign) -> tuple[Clause, ...]:
    """All of a sign, the one of the root or waiter first."""
    first = sign.root or sign.waiter
    return tuple(one for one in (first, sign.raised) if one is not None) + sign.others


def with_sets(sign: Sign, sets: Mapping[str, str]) -> tuple[Sign, list[str]]:
    """The sign with `@name` replaced, and the names that nobody defines."""
    unknown: list[str] = []

    def resolved(patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            EITHER.join(one(each.strip()) for each in pattern.split(EITHER.strip()))
            for pattern in patterns
        )

    def one(pattern: str) -> str:
        if pattern.startswith("@") and pattern[1:] not in sets:
            unknown.append(pattern[1:])
        return sets.get(pattern[1:], pattern) if pattern.startswith("@") else pattern

    def filled(clause: Clause) -> Clause:
        return msgspec.structs.replace(
            clause,
            frames=resolved(clause.frames),
            top=resolved(clause.top),
            without=resolved(clause.without),
        )

    sign = msgspec.structs.replace(
        sign,
        root=filled(sign.root) if sign.root else None,
        waiter=filled(sign.waiter) if sign.waiter else None,
        others=tuple(filled(clause) for clause in sign.others),
        raised=filled(sign.raised) if sign.raised else None,
    )
    return sign, unknown


def family_problems(rule: FamilyRule) -> list[str]:
    """What is wrong with a family beyond the types of its signs, in words."""
    unknown = [one for one in rule.of if one not in _OF]
    problems = [f"of: `{one}` is none of {', '.join(_OF)}" for one in unknown]
    return problems + _placeholder_problems(rule.says)


def sign_problems(sign: Sign) -> list[str]:
    """What is wrong with a sign beyond its types, in words."""
    problems = _placeholder_problems(sign.says or "")
    texts = [*sign.log, *sign.also, *sign.unless, *sign.then]
    problems += _word_problems("when", sign.when, OF_THE_JOB)
    for clause in clauses(sign):
        texts += [text for text in (clause.source, clause.kernel) if text is not None]
        problems += _word_problems("facts", clause.facts, OF_PROCESSES)
    problems += [problem for text in texts if (problem := _regex_problem(text))]
    first = sign.root or sign.waiter
    if sign.root is not None and sign.waiter is not None:
        problems.append("either `root` or `waiter`")
    if any(one.who != "any" or one.absent for one in (first, sign.raised) if one is not None):
        problems.append("`who` and `absent` are for `others`")
    if first is None and not (sign.log or sign.when or sign.raised):
        problems.append("nothing to recognise it by: it would fit everything")
    return problems


def _placeholder_problems(text: str) -> list[str]:
    names = [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
    return [f"says: {{{name}}} is not a placeholder" for name in names]


def _word_problems(key: str, wanted: tuple[str, ...], known: frozenset[str]) -> list[str]:
    words = (word.removeprefix("!") for one in wanted for word in one.split("|"))
    return [f"{key}: `{word}` is not a known word" for word in words if word not in known]


def _regex_problem(text: str) -> str | None:
    try:
        re.compile(text)
        re.compile(f"x|(?:{text.removeprefix('(?i)')})")
    except re.error as error:
        return f"{text!r} is not a regular expression: {error}"
    return None
