"""The detector over recorded samples, under their own clock: what it would have called, and when.

It runs track, detect and suspect as the supervisor does. A look answers "unknown" unless the caller
has a better answer. Nothing is ended: after a stall the samples go on
as under --observe. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Observation,
    Record,
    StartEvidence,
    StartLook,
    TreeSight,
)
from watchdog_train.core.detection.detect import Verdict, verdict
from watchdog_train.core.detection.track import Track, advance, new_track
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import AttemptRecord, State, Tree
from watchdog_train.core.model import (
    Basis,
    EvidenceResult,
    Patience,
    Phase,
    Plan,
    Sample,
    Value,
    Why,
)
from watchdog_train.core.notices.poll_events import job_step
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import watch

MOST_FINDINGS = 1000
MOST_ACTIONS = 8
"""At one sample; a suspicion with its look and its stall takes four."""

Look = Callable[[Verdict], EvidenceResult | None]
"""None: there is no answer yet."""


class Finding(Value):
    """Something the detector would have said."""

    t: float
    kind: Literal["stall", "suspect", "stopped"]
    phase: Phase
    basis: Basis
    why: Why


class Replay:
    """Judges samples one by one; `findings` holds what was said so far."""

    def __init__(self, policy: Policy, look: Look | None = None) -> None:
        self.findings: list[Finding] = []
        self.left_out = 0
        """Findings over the limit of 1000."""
        self.first_stall_t: float | None = None
        self._policy = policy
        self._look = look or self._unknown
        self._state = State()
        self._track: Track | None = None
        self._started_at = 0.0
        self._attempt = 0

    def begin_attempt(self) -> None:
        """What follows belongs to a new attempt."""
        self._track = None

    def judge(self, sample: Sample) -> Verdict:
        """The verdict at a sample; what it leads to is in `findings`."""
        if self._track is None:
            self._begin(sample.at)
        assert self._track is not None  # noqa: S101 - narrows for the type checker
        detection = self._policy.detection
        self._track = advance(self._track, sample, detection)
        found = verdict(self._track, sample, detection)
        attempt = self._state.attempt
        if attempt is not None and attempt.first_step_s is None:
            step = job_step(sample)
            if step is not None:
                after_s = sample.at - self._started_at
                self._record(e.FirstStep(rank=0, pid=0, step=step, after_s=after_s), sample, found)
        if (
            found.kind != "alive"
            or found.stopped
            or self._state.suspicion
            or self._state.notices
            or self._state.muted
        ):
            self._follow(sample, found)
        return found

    def _unknown(self, found: Verdict) -> EvidenceResult:
        """The look at a trace: there are no waits in it."""
        if found.stopped:
            return unseen(Patience(row="stopped"))
        limits = self._policy.patience
        limit_s = limits.unknown_early_s if found.early else limits.unknown_s
        return unseen(Patience(limit_s=limit_s))

    def _begin(self, at: float) -> None:
        self._attempt += 1
        self._started_at = at
        self._track = new_track(at)
        self._state = State(state="running", attempts=(_launched(self._attempt, at),))

    def _follow(self, sample: Sample, found: Verdict) -> None:
        """Ask for actions until there is nothing more to do about this sample."""
        look: EvidenceResult | None = None
        for _ in range(MOST_ACTIONS):
            observation = Observation(
                now=sample.at,
                wall=sample.at,
                sample=sample,
                verdict=found,
                # A bundle is not to be had: whoever wants one goes on without.
                trees=(TreeSight(sample=sample, look=look, running=frozenset({"evidence"})),),
                bundles=0,
            )
            match watch(observation, self._state, self._policy, {}):
                case Record(events=events, consumes=used):
                    look = None if "look" in used else look
                    for event in events:
                        self._record(event, sample, found)
                case StartLook():
                    look = self._look(found)
                    if look is None:
                        return
                case StartEvidence() | _:
                    return

    def _record(self, event: e.AnyEvent, sample: Sample, found: Verdict) -> None:
        stamped = msgspec.structs.replace(event, t=sample.at, mono=sample.at, attempt=self._attempt)
        self._state = evolve(self._state, stamped)
        match event:
            case e.Suspected():
                self._say("suspect", sample, event, event.why)
            case e.StallDeclared():
                self._say("stall", sample, event, event.why)
                if self.first_stall_t is None:
                    self.first_stall_t = sample.at
                spared = e.WouldHaveKilled(stall_id=event.stall_id, why=event.why)
                self._record(spared, sample, found)
                # A flapping trace must not make a list of a million stalls.
                self._state = msgspec.structs.replace(self._state, stalls=self._state.stalls[-1:])
            case e.Noticed(kind="stopped"):
                self._say("stopped", sample, found, event.why)
            case _:
                pass

    def _say(
        self,
        kind: Literal["stall", "suspect", "stopped"],
        sample: Sample,
        of: e.Suspected | e.StallDeclared | Verdict,
        why: Why,
    ) -> None:
        if len(self.findings) >= MOST_FINDINGS:
            self.left_out += 1
            return
        found = Finding(t=sample.at, kind=kind, phase=of.phase, basis=of.basis, why=why)
        self.findings.append(found)


def unseen(patience: Patience) -> EvidenceResult:
    """What a look without stacks has found."""
    return EvidenceResult(
        stall_id="",
        dir="",
        processes=(),
        explanation=None,
        patience=patience,
        fingerprint=None,
        seconds=0.0,
        problem="a trace holds no stacks",
    )


def _launched(number: int, at: float) -> AttemptRecord:
    plan = Plan(
        attempt=number,
        why=Why("first-attempt"),
        argv=(),
        env={},
        in_process=(),
        checkpoint=None,
        resume_via="none",
        remedies=(),
    )
    return AttemptRecord(
        attempt=number, plan=plan, token="", launching_mono=at, trees=(Tree(launched=True),)
    )
