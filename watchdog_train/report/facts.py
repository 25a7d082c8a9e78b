"""Phrases about a run that several renderers use. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State, Tree
from watchdog_train.core.model import (
    CrashFact,
    Explanation,
    Member,
    Plan,
    ProcessId,
    Why,
)
from watchdog_train.core.recovery.remedies import helped, passed_once, tried
from watchdog_train.report import words
from watchdog_train.report.explanation_text import because, crash_words, what_happened
from watchdog_train.report.why_text import exit_text, why_text
from watchdog_train.report.words import clean

ScriptLines = Mapping[str, str]
"""Remedy id -> the line for the training script that makes the setting for good."""

Redact = Callable[[Sequence[str]], tuple[str, ...]]
"""Removes the values of secret-looking flags from a command line."""


def without_secrets(events: Iterable[e.AnyEvent], redact: Redact) -> Iterator[e.AnyEvent]:
    """The events as they may be shown: command lines can hold tokens and passwords."""
    for event in events:
        if isinstance(event, e.RunStarted):
            yield msgspec.structs.replace(
                event, argv=redact(event.argv), options=redact(event.options)
            )
        elif isinstance(event, e.PlanMade | e.AttemptLaunching):
            plan = msgspec.structs.replace(event.plan, argv=redact(event.plan.argv))
            yield msgspec.structs.replace(event, plan=plan)
        else:
            yield event


def exit_words(attempt: AttemptRecord | Tree) -> str:
    """How an attempt, or its part on one machine, ended."""
    if not attempt.ended:
        return "no end is recorded" if attempt.launched else "no start is recorded"
    if attempt.how_known == "not-started":
        return f"could not be started: {why_text(attempt.error or Why('unknown'))}"
    if attempt.error is not None and attempt.error.end is not None:
        return why_text(attempt.error)
    return exit_text(attempt.code, attempt.signal)


def caught_sentence(crash: CrashFact | None, found: Explanation | None) -> str:
    """A bundle's subject: the crash, the root or the cause; empty: unknown."""
    if crash is not None:
        return crash_words(crash)
    if found is None:
        return ""
    return what_happened(found) if found.tells else because(found)


def step_words(step: int | None) -> str:
    return "an unknown step" if step is None else f"step {words.number(step)}"


def newest_step(state: State) -> int | None:
    """The newest that is known, else the newest of all attempts."""
    return state.progress.step if state.progress.step is not None else state.best_step


def permanent_lines(state: State, script_lines: ScriptLines) -> dict[str, str]:
    """Remedy -> the line for the script, of each setting that is shown to have helped."""
    return {name: script_lines[name] for name in helped(state) if name in script_lines}


def origin_words(plan: Plan) -> str:
    """Where an attempt starts; the script decides unless wtrain passes it a checkpoint."""
    used = plan.checkpoint
    where = "" if used is None else f"{step_words(used.step)} ({words.last_part(used.path)})"
    if plan.resume_via == "script":
        return f"where its script decides{where and f'; the newest checkpoint is {where}'}"
    if used is None:
        return "from the beginning"
    if plan.resume_via == "env":
        return f"without a known way to resume from {where}"
    return f"to resume from {where}"


def role_counts(targets: Iterable[ProcessId], members: Iterable[Member]) -> str:
    """`1 rank, 2 workers and 1 other process`."""
    wanted = set(targets)
    hosts = {target.host for target in wanted}  # usually one of a thousand
    roles = {member.identity: member.role for member in members if member.host in hosts}
    return counted_roles(Counter(roles.get(target, "other") for target in wanted))


def counted_roles(counts: Mapping[str, int]) -> str:
    order = ("launcher", "rank", "worker", "other", "keeper")
    only_other = not any(counts.get(role) for role in order if role != "other")
    nouns = {"other": "process" if only_other else "other process"}
    parts = [words.count(counts[role], nouns.get(role, role)) for role in order if counts.get(role)]
    return words.listed(parts) or "no process"


def run_again(state: State) -> str:
    """The command for the next run: `restart` after a failure, else a new `run`.

    A new run gets the settings in effect. A restart of a run that gave up gets the first remedy
    that its last diagnosis names and that is not allowed yet.
    """
    attempt = state.attempt
    if attempt is None:
        return _run_line(state.options, state.argv)
    if state.finished and state.outcome != "succeeded":
        offers = state.given_up.offers if state.given_up is not None else ()
        more = "".join(f" --with {clean(one, 60)} --allow {clean(one, 60)}" for one in offers[:1])
        return f"wtrain restart {words.command_text([state.run_id])}{more}"
    # --with would apply all of a remedy that was applied in part.
    refused = set(attempt.reported) - set(attempt.taken)
    kept = [use for use in attempt.plan.remedies if use.id not in refused and not use.in_part]
    found = [word for use in kept if use.word not in state.options for word in ("--with", use.word)]
    return _run_line((*state.options, *found), attempt.plan.argv)


def _run_line(options: Sequence[str], argv: Sequence[str]) -> str:
    return f"wtrain {words.command_text(['run', *options, '--', *argv])}"


def by_hand(plan: Plan, cwd: str) -> str:
    """The command line of one attempt, as a person can repeat it in a shell."""
    variables = " ".join(
        f"{clean(name, 200)}={words.command_text([value])}"
        for name, value in sorted(plan.env.items())
    )
    command = words.command_text(plan.argv)
    start = f"cd {words.command_text([cwd])} && " if cwd else ""
    return f"{start}{variables + ' ' if variables else ''}{command}"


def what_followed(stall: StallRecord, state: State) -> str | None:
    """What was done after a stall, crash or dump; None: nothing is recorded yet."""
    if stall.recovered:
        return "the silence ended before anything was killed"
    if stall.reported_only:
        return "reported only, nothing was killed"
    if stall.why == "manual":
        return "nothing was killed or changed"
    for before, after in pairwise(state.attempts):
        if stall.id in (before.stall_id, before.crash_id):
            known = {use.id for use in before.plan.remedies}
            new = [clean(use.id, 60) for use in after.plan.remedies if use.id not in known]
            changed = f"with {words.listed(new)}" if new else "with the same settings"
            used = after.plan.checkpoint
            origin = f"started {origin_words(after.plan)}"
            if after.resume == "verified" and used is not None:
                origin = f"resumed from {step_words(used.step)} ({words.last_part(used.path)})"
            return f"attempt {after.attempt} {origin}, {changed}"
    return f"the run ended: {why_text(state.why)}" if state.finished and state.why else None


def tried_lines(state: State) -> tuple[str, ...]:
    uses = tried(state)
    shown = helped(state)
    once = passed_once(state)
    rest = [use.id for use in uses if use.id not in {*shown, *once}]
    named = [f"{clean(u.id, 60)}{' (experiment)' if u.experiment else ''}" for u in uses]
    rows = (
        ("settings tried", named),
        ("shown to have helped", [clean(name, 60) for name in shown]),
        ("passed once with it, which proves little", [clean(name, 60) for name in once]),
        ("not shown to have helped", [clean(name, 60) for name in rest]),
    )
    return tuple(f"{what}: {words.listed(names)}" for what, names in rows if names)
