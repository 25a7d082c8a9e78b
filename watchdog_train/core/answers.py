"""The results of the slow tasks (evidence, stack samples, scans), and which are still needed.

Rules of decide() and shared functions. One collection runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Action,
    Observation,
    Record,
    StartEvidence,
    TaskName,
    Wait,
    on_each,
)
from watchdog_train.core.detection.detect import BUSY
from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.core.job.machines import folder_of, roots_first
from watchdog_train.core.model import BundleWhy, EvidenceResult, written
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.kill import nobody_left

ASKED_FIRST = 32
"""Machines: those with the root, then others up to this number."""
KINDS: dict[BundleWhy, str] = {"stall": "hang", "crash": "crash", "manual": "manual"}
"""A bundle's reason as the verdict has it."""


def drop_stale(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """Discard answers to a silence or stall that is over: the next attempt must not use them."""
    attempt = state.attempt
    stale: list[TaskName] = []
    wanted = {stall.id for stall in state.stalls if stall.collecting}
    unwanted = on_each(
        Record(events=(), consumes=("evidence",), host=sight.host)
        for sight in observation.trees
        if sight.evidence is not None and sight.evidence.stall_id not in wanted
    )
    if unwanted is not None:
        return unwanted
    verdict = observation.verdict
    if any(each.look is not None for each in observation.trees) and (
        state.suspicion is None
        or (state.suspicion in BUSY and not (verdict.spins_s or verdict.device))
    ):
        stale.append("look")
    survey = observation.survey
    over = attempt is not None and attempt.ended and state.stop is None
    winding_up = attempt is not None and not (attempt.tree_gone or nobody_left(observation))
    # The next plan needs a scan made after the last writer exited.
    if survey is not None and over and (survey.beside_writers or winding_up):
        stale.append("survey")
    return Record(events=(), consumes=tuple(stale)) if stale else None


def bring_home(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Record arrived evidence of a collection, and request what is missing or an adoption lost.

    The first ASKED_FIRST machines show what happened; the others are asked after them. Evidence
    of the others that is missing at the time limit of a bundle delays nothing; it is kept when it
    arrives.
    """
    stall = next((each for each in state.stalls if each.collecting), None)
    if stall is None:
        return None
    hosts = roots_first(state, stall)
    first = _lacking(hosts[:ASKED_FIRST], state, stall)
    rest = _lacking(hosts[ASKED_FIRST:], state, stall) if not first else ()
    limit_s = policy.evidence.total_s
    if rest and observation.now - stall.declared_mono >= limit_s:
        return Record(events=tuple(_late(stall, host, limit_s) for host in rest))
    return on_each(_bring(observation, state, stall, host) for host in first or rest)


def _late(stall: StallRecord, host: str, limit_s: float) -> e.AnyEvent:
    result = EvidenceResult(
        stall_id=stall.id,
        dir=folder_of(stall.dir or "", host),
        seconds=limit_s,
        problem=f"not here within {limit_s:g} s",
    )
    return evidence_events(result, stall.why, host)[0]


def _lacking(hosts: Sequence[str], state: State, stall: StallRecord) -> tuple[str, ...]:
    """Machines whose evidence is missing and may still arrive."""
    trees = (state.tree(host) for host in hosts)
    return tuple(
        tree.host
        for tree in trees
        if tree is not None and not (tree.lost or tree.evidence == stall.id)
    )


def _bring(observation: Observation, state: State, stall: StallRecord, host: str) -> Action | None:
    sight = observation.of(host)
    result = sight.evidence
    if result is not None and result.stall_id == stall.id:
        events = evidence_events(result, stall.why, host)
        if host != _explains(state, stall.why):
            events = events[:1]
        return Record(events=events, consumes=("evidence",), host=host)
    if "evidence" in sight.running:
        return None
    return collect(observation, stall.id, stall.why, host=host)


def _explains(state: State, why: BundleWhy) -> str | None:
    """The machine whose own explanation counts; None: one of several cannot explain a hang."""
    if why == "crash" and state.attempts:
        return state.attempts[-1].end.host
    return None if len(state.trees) > 1 else ""


def evidence_events(
    result: EvidenceResult, why: Literal["stall", "crash", "manual"], host: str
) -> tuple[e.AnyEvent, ...]:
    names = (name for name in e.EvidenceCollected.__struct_fields__ if hasattr(result, name))
    told: dict[str, Any] = {name: getattr(result, name) for name in names}
    collected = e.EvidenceCollected(where=written(host), why=why, **told)
    if result.explanation is None:
        return (collected,)
    explained = e.StallExplained(stall_id=result.stall_id, explanation=result.explanation)
    return (collected, explained)


def present_stall(state: State) -> StallRecord | None:
    """The stall for which the present attempt is to be killed."""
    attempt = state.attempt
    return state.stall(attempt.stall_id) if attempt is not None else None


def start_evidence(
    observation: Observation, state: State, stall_id: str, why: BundleWhy
) -> StartEvidence | Wait:
    """Collect here first, one collection at a time; `bring_home` asks the other machines."""
    if observation.is_collecting or state.is_collecting:
        return Wait(until=observation.now + 0.05)
    return collect(observation, stall_id, why)


def collect(
    observation: Observation, stall_id: str, why: BundleWhy, *, host: str | None = None
) -> StartEvidence:
    return StartEvidence(
        host=observation.trees[0].host if host is None else host,
        stall_id=stall_id,
        bundle_why=why,
        kind=KINDS[why],
        verdict=observation.verdict,
    )
