"""The detector over recorded samples, under their own clock: what it would have called, and when.

It runs track, verdict and suspect as the supervisor does. Nothing is killed: after a stall the
samples continue as under --observe. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation, Record, StartLook, TreeSight
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
"""At one sample; a suspicion with its stack sample and its stall takes four."""

Look = Callable[[Verdict], EvidenceResult | None]
"""A stack sample of now; None: it has not arrived."""


class Finding(Value):
    """What the detector would have reported."""

    t: float
    kind: Literal["stall", "suspect", "stopped"]
    phase: Phase
    basis: Basis
    why: Why


class Replay:
    """Judges samples one by one; `findings` holds the results so far."""

    def __init__(self, policy: Policy, look: Look) -> None:
        self.findings: list[Finding] = []
        self.left_out = 0
        """Findings over the limit of 1000."""
        self.first_stall_t: float | None = None
        self._policy = policy
        self._look = look
        self._state = State()
        self._track: Track | None = None
        self._attempt = 0

    def begin(self) -> None:
        """The next samples belong to a new attempt, or to another supervisor."""
        self._track = None

    def judge(self, sample: Sample) -> Verdict:
        if self._track is None:
            self._attempt += 1
            self._track = new_track(sample.at)
            self._state = State(state="running", attempts=(launched(self._attempt, sample.at),))
        detection = self._policy.detection
        self._track = advance(self._track, sample, detection)
        found = verdict(self._track, sample, detection)
        attempt, step = self._state.attempts[-1], job_step(sample)
        if attempt.first_step_s is None and step is not None:
            after_s = sample.at - attempt.launching_mono
            self._record(e.FirstStep(rank=0, pid=0, step=step, after_s=after_s), sample, found)
        state = self._state
        said = state.suspicion or state.notices or state.muted
        if found.kind != "alive" or found.stopped or said:
            self._follow(sample, found)
        return found

    def _follow(self, sample: Sample, found: Verdict) -> None:
        """Ask for actions until this sample needs no more."""
        look: EvidenceResult | None = None
        for _ in range(MOST_ACTIONS):
            # A bundle counts as being collected: nothing waits for one.
            sight = TreeSight(sample=sample, look=look, running=frozenset({"evidence"}))
            observation = Observation(
                now=sample.at,
                wall=sample.at,
                sample=sample,
                verdict=found,
                trees=(sight,),
                bundles=0,
            )
            match watch(observation, self._state, self._policy):
                case Record(events=events, consumes=used):
                    look = None if "look" in used else look
                    for event in events:
                        self._record(event, sample, found)
                case StartLook():
                    look = self._look(found)
                    if look is None:
                        return
                case _:
                    return

    def _record(self, event: e.AnyEvent, sample: Sample, found: Verdict) -> None:
        stamped = msgspec.structs.replace(event, t=sample.at, mono=sample.at, attempt=self._attempt)
        self._state = evolve(self._state, stamped)
        match event:
            case e.Suspected():
                self._say("suspect", sample.at, event)
            case e.StallDeclared():
                self._say("stall", sample.at, event)
                if self.first_stall_t is None:
                    self.first_stall_t = sample.at
                spared = e.WouldHaveKilled(stall_id=event.stall_id, why=event.why)
                self._record(spared, sample, found)
                # A trace that stalls forever must not make a list of a million stalls.
                self._state = msgspec.structs.replace(self._state, stalls=self._state.stalls[-1:])
            case e.Noticed(kind="stopped"):
                self._say("stopped", sample.at, msgspec.structs.replace(found, why=event.why))

    def _say(
        self,
        kind: Literal["stall", "suspect", "stopped"],
        at: float,
        of: e.Suspected | e.StallDeclared | Verdict,
    ) -> None:
        if len(self.findings) >= MOST_FINDINGS:
            self.left_out += 1
            return
        self.findings.append(Finding(t=at, kind=kind, phase=of.phase, basis=of.basis, why=of.why))


def unseen(patience: Patience) -> EvidenceResult:
    """The finding of a sample without stacks."""
    problem = "a trace holds no stacks"
    return EvidenceResult(stall_id="", dir="", patience=patience, problem=problem)


def launched(number: int, at: float) -> AttemptRecord:
    """A running attempt of which only the start is known."""
    plan = Plan(attempt=number, why=Why("first-attempt"), argv=())
    return AttemptRecord(
        attempt=number, plan=plan, token="", launching_mono=at, trees=(Tree(launched=True),)
    )
