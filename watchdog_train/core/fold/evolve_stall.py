"""How a stall, its evidence and its cause change the state of a run. Part of evolve; pure."""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import LASTING, PAUSES_REMEMBERED, StallRecord, State
from watchdog_train.core.model import Place

_replace = msgspec.structs.replace


def _declared(state: State, event: e.StallDeclared) -> State:
    record = StallRecord(
        id=event.stall_id,
        why="stall",
        attempt=event.attempt,
        at=event.t,
        declared_mono=event.mono,
        basis=event.basis,
        phase=event.phase,
        ranks=event.ranks,
        age_s=event.age_s,
        verdict=event.why,
        roots=state.look.roots if state.look is not None else (),
        suspected=state.look.explanation if state.look is not None else None,
        silent_at=event.at,
        places=state.places,
        places_mono=event.mono,
    )
    state = records.attempt(state, stall_id=event.stall_id)
    return _replace(
        state, stalls=(*state.stalls, record), suspicion=None, look=None, state="collecting"
    )


def _went_on(state: State, event: e.SuspicionEnded) -> State:
    """A silence is over; clear its notices."""
    return _replace(
        state,
        suspicion=None,
        look=None,
        muted=False,
        noticed=tuple(each for each in state.noticed if each.kind in LASTING),
        pauses=_paused(state.pauses, event),
    )


def _paused(pauses: tuple[Place, ...], event: e.SuspicionEnded) -> tuple[Place, ...]:
    if event.at is None or event.patience is None or not event.paused_s:
        return pauses
    own = event.at.own
    return (*(one for one in pauses if one != own), own)[-PAUSES_REMEMBERED:]


def change(state: State, event: e.AnyEvent) -> State:  # noqa: PLR0912 - one arm per event type
    match event:
        case e.Suspected():
            return _replace(
                state,
                suspicion=event.basis,
                suspicion_mono=event.mono,
                silent_since=event.mono - event.age_s,
                look=None,
            )
        case e.Looked():
            native_mono = event.mono if event.device is not None else state.native_mono
            return _replace(state, look=event, native_mono=native_mono)
        case e.SuspicionEnded():
            return _went_on(state, event)
        case e.StallDeclared():
            return _declared(state, event)
        case e.StallRecovered():
            state = _without_kill(state, event.stall_id, recovered=True, collecting=False)
            return _replace(state, muted=False, suspicion=None, look=None)
        case e.WouldHaveKilled():
            state = _without_kill(state, event.stall_id, reported_only=True)
            return _replace(state, muted=True)
        case e.EvidenceCollecting():
            if state.stall(event.stall_id) is None:
                record = StallRecord(
                    id=event.stall_id,
                    why=event.why,
                    attempt=event.attempt,
                    at=event.t,
                    declared_mono=event.mono,
                )
                state = _replace(state, stalls=(*state.stalls, record))
                if event.why == "crash":
                    state = _replace(
                        records.attempt(state, crash_id=event.stall_id), state="collecting"
                    )
            state = records.trees(state, event.host, evidence=None)
            return records.stall(state, event.stall_id, collecting=True, **_folder(event))
        case e.EvidenceMoved():
            return records.stall(state, event.stall_id, dir=event.dir)
        case e.EvidenceCollected():
            attempt = state.attempt
            first = attempt is None or attempt.crash is None or attempt.end.host == event.host
            if event.crash is not None and first:
                state = records.attempt(state, crash=event.crash)
            state = records.trees(state, event.host, evidence=event.stall_id)
            whole = records.has_all(state, event.stall_id)
            before = state.stall(event.stall_id)
            return records.stall(
                state,
                event.stall_id,
                collecting=not whole,
                collected=whole,
                **_folder(event),
                captured=event.captured + (before.captured if before is not None else 0),
                processes=len(event.processes) + (before.processes if before is not None else 0),
                fingerprint=event.fingerprint or (before.fingerprint if before else None),
                crash=state.attempt.crash if state.attempt is not None else event.crash,
            )
        case e.StallExplained():
            joint = bool(event.tasks)
            return records.stall(
                state,
                event.stall_id,
                explanation=event.explanation,
                joint=joint,
                culprit_host=event.host,
            )
        case _:
            return state


def _without_kill(state: State, stall_id: str, **changes: bool) -> State:
    state = records.stall(records.attempt(state, stall_id=None), stall_id, **changes)
    return _replace(state, state="running" if state.state == "collecting" else state.state)


def _folder(event: e.EvidenceCollecting | e.EvidenceCollected) -> dict[str, str | None]:
    """A bundle's path on the supervisor's machine; those of other machines lie inside."""
    return {} if event.host else {"dir": event.dir}
