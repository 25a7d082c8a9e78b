"""How a run changes hands: adopted by another supervisor, or reopened after its end. Pure."""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ProcessId

_replace = msgspec.structs.replace


def adopted(state: State, event: e.Adopted) -> State:
    """Another supervisor goes on with what is open."""
    for tree in state.trees:
        if tree.kill is not None:
            # What the last supervisor meant to signal and did not gets its full time.
            kill = _replace(tree.kill, stage_mono=event.mono)
            state = records.trees(state, tree.host, kill=kill)
    rebooted = state.boot_id != event.boot_id
    me = ProcessId(event.pid, event.start)
    state = _replace(state, supervisor=me, boot_id=event.boot_id)
    if not rebooted:
        return state
    # The monotonic clock began anew: a moment of the old one may lie days ahead.
    state = records.attempt(records.trees(state, ended_mono=event.mono), launching_mono=event.mono)
    return _with_new_clock(state, event.mono)


def _with_new_clock(state: State, mono: float) -> State:
    """What waited for a moment, or until some time after one, waits no more."""
    return _replace(
        state,
        backoff_until=None,
        gpu_held=None,
        scan_failures=0,
        postponed=None,
        kept_mono=0.0,
        keep_failed=False,
        suspicion_mono=mono,
        progress_mono=mono,
    )


def reopened(state: State, event: e.Reopened) -> State:
    """A finished run goes on: nothing of it lives, and what ended it is forgiven."""
    for tree in state.trees:
        gone_at = event.t if tree.gone_at is None else tree.gone_at
        state = records.trees(
            state,
            tree.host,
            ended=True,
            ended_mono=event.mono,
            gone_at=gone_at,
            kill=None,
            survivors=(),
        )
    return _replace(
        _with_new_clock(state, event.mono),
        state="idle",
        outcome=None,
        exit_code=None,
        warning=None,
        why=None,
        stop=None,
        stop_asked=None,
        given_up=None,
        given_up_code=None,
        given_up_outcome=None,
        offers=(),
        guilty=(),
        members=(),
        ranks=(),
        next_plan=None,
        crew=None,
        suspicion=None,
        look=None,
        muted=False,
        notices=(),
        noticed=(),
        reopened_after=len(state.attempts),
        restarts_since_progress=0 if event.fresh_budget else state.restarts_since_progress,
        supervisor=ProcessId(event.pid, event.start),
        boot_id=event.boot_id,
        slot_dir=event.slot_dir,
    )
