"""Hang families as data: what a rule file may say, and the checks that need no file.

No reading of files and no judging: `rules.load_rules` reads, `core.diagnose` judges.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from watchdog_train.core.model import BundleWhy, DiagnosisKind, Patience, Role

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
PLACEHOLDERS = frozenset({"who", "rank", "pid", "frame", "line", "signal", "parent", "top"})
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
    forked: bool | None = None
    idle_worker: bool | None = None
    changed: bool | None = None
    captured: bool | None = None
    waits_for_input: bool | None = None
    wchan: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Variable -> regular expression for its value."""
    command: str | None = None
    """Regular expression for the command line."""


class HostClause(Part, frozen=True, kw_only=True):
    """The machine fits all of this."""

    oom_killed: bool | None = None
    shm_used_over: Share | None = None
    memory_available_under: Share | None = None
    swap_used_over: Share | None = None


class Signature(Part, frozen=True, kw_only=True):
    """One way to recognise a family; every part that is given must fit."""

    id: str
    confidence: Share
    patience: Patience = "unknown"
    kind: DiagnosisKind | None = None
    why: tuple[BundleWhy, ...] = ()
    """Only in bundles of these causes; empty: all."""
    processes: tuple[ProcessClause, ...] = ()
    log: tuple[str, ...] = ()
    """Regular expressions; one must be found in a line, and no progress after it."""
    log_also: tuple[str, ...] = ()
    """One of these, in any line."""
    log_without: tuple[str, ...] = ()
    exit_signal: tuple[int, ...] = ()
    exit_code: tuple[int, ...] = ()
    host: HostClause | None = None
    dead_lock_owner: bool = False
    """A lock file that is waited for belongs to a process that is gone."""
    explanation: str
    """Two sentences for a person; {who} {rank} {pid} {frame} {line} {signal} {parent} {top}."""
    remedies: tuple[str, ...] | None = None
    """Instead of the family's."""


class FamilyRule(Part, frozen=True, kw_only=True):
    """One family: a rule file holds one or a list of them."""

    family: str
    kind: DiagnosisKind
    precedence: int = 50
    """Among equally likely families the higher one comes first."""
    beats: tuple[str, ...] = ()
    """Neighbours that this family explains away when it fits."""
    remedies: tuple[str, ...] = ()
    signatures: tuple[Signature, ...]


class Rules(msgspec.Struct, frozen=True):
    """All families that are known."""

    families: tuple[FamilyRule, ...]


def _regex_problem(text: str) -> str | None:
    try:
        re.compile(text)
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
    texts = [*signature.log, *signature.log_also, *signature.log_without]
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
        or signature.host or signature.dead_lock_owner
    )  # fmt: skip
    if not has_cause:
        problems.append("nothing to recognise it by: it would fit everything")
    return problems
