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


def went_on(state: State, event: e.SuspicionEnded) -> State:
    """A silence is over, and what was said about it with it."""
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


def change(state: State, event: e.AnyEvent) -> State:
    """A stall, what is taken of it, of a crash or on request, and what it tells."""
    match event:
        case e.StallDeclared():
            return _declared(state, event)
        case e.EvidenceCollecting():
            if not any(stall.id == event.stall_id for stall in state.stalls):
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
            before = next((one for one in state.stalls if one.id == event.stall_id), None)
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


def _folder(event: e.EvidenceCollecting | e.EvidenceCollected) -> dict[str, str | None]:
    """A bundle is where the supervisor's machine has it; those of others lie inside."""
    return {} if event.host else {"dir": event.dir}
