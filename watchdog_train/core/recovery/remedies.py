"""What is known of a remedy, and which tried ones are shown to have helped. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State
from watchdog_train.core.model import RemedyKind, RemedyUse, Value

Platform = Literal["linux", "darwin", "win32"]
EVERYWHERE: tuple[Platform, ...] = get_args(Platform)


def parted(word: str) -> tuple[str, int | None]:
    """The remedy and the number of `ID=N`; the unchanged word and None without a valid number."""
    name, _, number = word.partition("=")
    if number.isascii() and number.isdigit() and len(number) < 10 and int(number):
        return name, int(number)
    return word, None


class RemedySpec(Value):
    id: str
    kind: RemedyKind = "execution"
    summary: str
    """What it does, as a clause: `loads data in the main process`."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    parameters: dict[str, Any] | None = msgspec.field(default_factory=dict)
    """For the client, which acts by the id; None: the client does nothing."""
    in_part: dict[str, Any] | None = None
    """The entry of a remedy that needs permission, for the part that needs none."""
    needs_allow: bool = False
    """Needs permission although its kind does not."""
    for_trials: bool = False
    """It leaves most of the training out: only by its own id, never by its kind."""
    counts_attempts: bool = False
    """Each attempt with it goes one step further: its entry counts these attempts (`times`)."""
    evidence_only: bool = False
    """It repairs nothing and slows training: for the next attempt alone."""
    precondition: str = ""
    """When it may be applied, and who checks that; "" when it always may."""
    changes: str = "nothing"
    """What it changes for the result of the training."""
    may_break: str
    script_line: str = ""
    """The lines that make it permanent in the script, "" without any."""
    platforms: tuple[Platform, ...] = EVERYWHERE

    @property
    def in_process(self) -> dict[str, Any] | None:
        return None if self.parameters is None else {"id": self.id, **self.parameters}

    @property
    def changes_nothing(self) -> bool:
        return not self.env and self.parameters is None

    @property
    def number(self) -> int | None:
        """Its number for `--with ID` without one; None if it takes no number."""
        return (self.parameters or {}).get("n")


Remedies = Mapping[str, RemedySpec]


def variables(script_line: str | None = None, /, **env: str) -> dict[str, Any]:
    """The fields of a remedy that only sets variables; the client reports whether they arrived."""
    lines = (
        f'os.environ["{name}"] = "{value}"  # before the import' for name, value in env.items()
    )
    line = "\n".join(lines) if script_line is None else script_line
    return {"env": env, "parameters": {"env": env}, "script_line": line}


def tried(state: State) -> tuple[RemedyUse, ...]:
    found = {use.id: use for attempt in state.attempts for use in attempt.plan.remedies}
    return tuple(found.values())


def helped(state: State) -> tuple[str, ...]:
    """Settings named by a family, with which a later attempt passed the point of its hang.

    The hang must have a proven cause, or have come in two attempts without the setting: a single
    one may be chance. Settings from a person or an experiment are never listed.
    """
    return tuple(name for name, is_shown in _passed_with(state) if is_shown)


def passed_once(state: State) -> tuple[str, ...]:
    """The same settings after a single hang without a proven cause."""
    return tuple(name for name, is_shown in _passed_with(state) if not is_shown)


def _passed_with(state: State) -> Iterator[tuple[str, bool]]:
    for use in tried(state):
        passed = [one for one in state.stalls if _passed(use.id, one, state)]
        if passed and not use.experiment:
            yield use.id, _is_shown(use.id, passed, state)


def _is_shown(name: str, passed: Sequence[StallRecord], state: State) -> bool:
    if any(one.because is not None and one.because.certainty == "proven" for one in passed):
        return True
    without = [
        stall.family
        for attempt in state.attempts
        if not _has(attempt, name)
        for stall in state.stalls
        if stall.id in (attempt.stall_id, attempt.crash_id)
    ]
    return any(without.count(stall.family) > 1 for stall in passed)


def _passed(name: str, stall: StallRecord, state: State) -> bool:
    """Whether the hang or crash named it, and an attempt with it got further since."""
    before = next((a for a in state.attempts if stall.id in (a.stall_id, a.crash_id)), None)
    offered = stall.explanation.remedies if stall.explanation is not None else ()
    named = any(one.name == name and one.by == "family" for one in offered)
    if before is None or not named or _has(before, name):
        return False
    later = [one for one in state.attempts if one.attempt > before.attempt and _has(one, name)]
    again = {other.id for other in state.stalls if other.family == stall.family}
    if not later or any({one.stall_id, one.crash_id} & again for one in later):
        return False
    return any(_is_further(one, before, state) for one in later)


def _has(attempt: AttemptRecord, name: str) -> bool:
    refused = name in attempt.reported and name not in attempt.taken
    return not refused and name in attempt.plan.settings


def _is_further(one: AttemptRecord, before: AttemptRecord, state: State) -> bool:
    done = state.outcome == "succeeded" and one.attempt == state.attempts[-1].attempt
    return done or (one.last_step is not None and one.last_step > (before.last_step or 0))
