"""Hang families as data: what a rule file may say, and the checks that need no file.

No reading of files and no judging: `rules.load_rules` reads, `core.diagnosis.diagnose` judges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from watchdog_train.core.diagnosis.collectives import Relation
from watchdog_train.core.diagnosis.log_search import Movement
from watchdog_train.core.diagnosis.ranks import Standing
from watchdog_train.core.diagnosis.stacks import EITHER
from watchdog_train.core.model import BundleWhy, DiagnosisKind, Role

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
PLACEHOLDERS = frozenset(
    {"who", "rank", "pid", "frame", "line", "signal", "parent", "top", "op", "silent", "others"}
    | {"all", "unseen"}
)
ALL_PLACEHOLDER = "{all}"
"""Everybody whom the first clause fits, each with its place."""
_PLACEHOLDER = re.compile(r"\{(\w*)\}")


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: an unknown key is an error."""


class ProcessClause(Part, frozen=True, kw_only=True):
    """One process (the first clause: the culprit) and one of its threads fit all of this."""

    who: Literal["same", "parent", "child", "other", "any"] = "any"
    """In relation to the culprit; not in the first clause."""
    absent: bool = False
    """No process may fit."""
    roles: tuple[Role, ...] = ()
    thread: Literal["main", "other", "any"] = "any"
    """Of all threads that are not idle helpers."""
    chain: tuple[str, ...] = ()
    """Frame patterns, outermost first, gaps allowed."""
    top: tuple[str, ...] = ()
    """One of these is among the `depth` innermost frames."""
    depth: Annotated[int, Meta(ge=1, le=50)] = 1
    without: tuple[str, ...] = ()
    """None of these is anywhere in the stack."""
    source: str | None = None
    """Regular expression for the text of the deciding line."""
    native: bool | None = None
    gil_holder: bool | None = None
    """The thread holds the interpreter lock."""
    state: tuple[str, ...] = ()
    cpu: Literal["flat", "busy", "not-busy"] | None = None
    """not-busy: flat or unknown."""
    sealed: bool | None = None
    outside: bool | None = None
    """Its main thread was seen to wait for a file, a lock on one, or another process."""
    forked: bool | None = None
    """Its stack shows that it was forked."""
    spawned: bool | None = None
    """False: nothing shows that it was started by spawn, so on Linux it was most likely forked."""
    ranks: tuple[int, ...] = ()
    idle: bool | None = None
    """Every thread waits as in a healthy run: an idle worker, a pool without work."""
    helpers: bool = False
    """Threads that idle in every healthy run count, too."""
    idle_worker: bool | None = None
    changed: bool | None = None
    captured: bool | None = None
    waits_for_input: bool | None = None
    odd: bool | None = None
    """A rank that is in no collective while the others wait in one."""
    active: bool | None = None
    """The tool saw its main thread run; spinning waits count as running, too."""
    wchan: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Variable -> regular expression for its value."""
    command: str | None = None
    """Regular expression for the command line."""


class RanksClause(Part, frozen=True, kw_only=True):
    """How the ranks stand to each other: by their stacks, and by what they recorded."""

    stacks: tuple[Standing, ...] = ()
    recorded: tuple[Relation, ...] = ()
    """Of their collectives, from the watchdogs' lines or the Flight Recorder."""
    seq_under: int | None = None
    """The collective that hangs has a smaller number."""
    single_element: bool | None = None
    nothing_completed: bool | None = None
    silent: bool | None = None
    """Some rank of the job left neither a stack nor a record."""
    all_seen: bool | None = None
    """The size of the job is known, and there is a stack or a record of every rank."""
    unrecorded: int | None = None
    """This rank recorded nothing, while others did."""
    steps_differ: bool | None = None
    """Ranks printed different last steps."""
    agree: bool | None = None
    """The one rank that is behind by its records is the one in no collective by the stacks."""


class HostClause(Part, frozen=True, kw_only=True):
    """The machine fits all of this."""

    oom_killed: bool | None = None
    oom_possible: bool | None = None
    """False where the kernel's count since the start is known and tells of no such kill."""
    shm_used_over: Share | None = None
    memory_available_under: Share | None = None
    swap_used_over: Share | None = None
    swap_bytes_s_over: float | None = None
    load_over: float | None = None
    """Load average per core."""
    gpu_shared: bool | None = None
    """Somebody else is known to hold memory on the training's GPUs."""


class Signature(Part, frozen=True, kw_only=True):
    """One way to recognise a family; every part that is given must fit."""

    id: str
    confidence: Share
    kind: DiagnosisKind | None = None
    why: tuple[BundleWhy, ...] = ()
    """Only in bundles of these causes; empty: all."""
    processes: tuple[ProcessClause, ...] = ()
    log: tuple[str, ...] = ()
    """Regular expressions; one must be found in a line, and no progress after it."""
    log_also: tuple[str, ...] = ()
    """One of these, in any line."""
    log_without: tuple[str, ...] = ()
    log_then: tuple[str, ...] = ()
    """One of these comes later than the line of `log`."""
    log_last: Annotated[int, Meta(ge=0, le=50)] = 0
    """The last so many lines of progress all fit `log`."""
    log_at_end: bool = False
    """The line is the last that the log has."""
    progress: tuple[Movement, ...] = ()
    """How the last counter of the log moves; a hung job's log also shows its last steps."""
    dumped: bool | None = None
    """There are stacks."""
    log_times: Annotated[int, Meta(ge=1, le=100)] = 1
    """So many lines must fit `log`."""
    steps_over: int | None = None
    """The log shows more steps of progress than this."""
    ranks: RanksClause | None = None
    exit_signal: tuple[int, ...] = ()
    exit_code: tuple[int, ...] = ()
    host: HostClause | None = None
    dead_lock_owner: bool = False
    """A lock file that is waited for belongs to a process that is gone."""
    explanation: str
    """Two sentences for a person; {who} {rank} {pid} {frame} {line} {signal} {parent} {top}
    {others} {all} {unseen}."""
    remedies: tuple[str, ...] | None = None
    """Instead of the family's."""


class FamilyRule(Part, frozen=True, kw_only=True):
    """One family: a rule file holds one or a list of them."""

    family: str
    kind: DiagnosisKind
    symptom: bool = False
    """A consequence that others print, too: an earlier line of another family is the cause."""
    precedence: int = 50
    """Among equally likely families the higher one comes first."""
    beats: tuple[str, ...] = ()
    """Neighbours that this family explains away when it fits."""
    link: str | None = None
    """The public thread or source that it is known from."""
    remedies: tuple[str, ...] = ()
    signatures: tuple[Signature, ...]


class FrameSets(Part, frozen=True, kw_only=True):
    """Names for sets of frames, to be used as `@name` wherever a rule has a frame pattern."""

    frames: dict[str, tuple[str, ...]]


class Rules(msgspec.Struct, frozen=True):
    """All families that are known, and the sets of frames by name, each as one pattern."""

    families: tuple[FamilyRule, ...]
    frames: dict[str, str] = msgspec.field(default_factory=dict)


def with_sets(signature: Signature, sets: Mapping[str, str]) -> tuple[Signature, list[str]]:
    """The signature with `@name` replaced, and the names that nobody defines."""
    unknown: list[str] = []

    def resolved(patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            EITHER.join(one(each.strip()) for each in pattern.split(EITHER.strip()))
            for pattern in patterns
        )

    def one(pattern: str) -> str:
        if not pattern.startswith("@"):
            return pattern
        if pattern[1:] not in sets:
            unknown.append(pattern[1:])
        return sets.get(pattern[1:], pattern)

    clauses = tuple(
        msgspec.structs.replace(
            clause,
            chain=resolved(clause.chain),
            top=resolved(clause.top),
            without=resolved(clause.without),
        )
        for clause in signature.processes
    )
    return msgspec.structs.replace(signature, processes=clauses), unknown


def _regex_problem(text: str) -> str | None:
    try:
        re.compile(text)
        re.compile(f"x|(?:{text.removeprefix('(?i)')})")
    except re.error as error:
        return f"{text!r} is not a regular expression: {error}"
    return None


def signature_problems(signature: Signature) -> list[str]:
    """What is wrong with a signature beyond its types, in words."""
    problems = [
        f"explanation: {{{name}}} is not a placeholder"
        for name in _PLACEHOLDER.findall(signature.explanation)
        if name not in PLACEHOLDERS
    ]
    texts = [*signature.log, *signature.log_also, *signature.log_without, *signature.log_then]
    for clause in signature.processes:
        texts += [text for text in (clause.source, clause.command) if text is not None]
        texts += clause.environment.values()
    problems += [problem for text in texts if (problem := _regex_problem(text))]
    if signature.processes:
        first = signature.processes[0]
        if first.who != "any" or first.absent:
            problems.append("processes: the first clause is the culprit: no `who`, no `absent`")
    has_cause = (
        signature.processes or signature.log or signature.exit_signal or signature.exit_code
        or signature.ranks or signature.steps_over is not None
        or signature.host or signature.dead_lock_owner
    )  # fmt: skip
    if not has_cause:
        problems.append("nothing to recognise it by: it would fit everything")
    return problems
