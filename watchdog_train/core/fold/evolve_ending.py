"""How requests, their answers and signals change the state of a run. Part of evolve; pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.events.run import BEFORE_RESTART
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import Kill, State, StopAsk
from watchdog_train.core.model import KeptCopy, ProcessId

_replace = msgspec.structs.replace


def _stop_requested(state: State, event: e.StopRequested) -> State:
    if state.stop is not None and state.stop.mode == "now":
        return state
    # The first request sets the exit code; a second one only shortens the wait.
    code = state.stop.exit_code if state.stop is not None else event.exit_code
    return _replace(state, stop=_replace(event, exit_code=code))


def change(state: State, event: e.AnyEvent) -> State:  # noqa: PLR0912 - one arm per event type
    match event:
        case e.StopRequested():
            return _stop_requested(state, event)
        case e.SaveRequested():
            return _replace(
                state,
                save_requested=event.sequence,
                save_wall=event.t,
                can_be_asked_to_save=event.can_be_asked,
                noticed=tuple(each for each in state.noticed if each.kind != "save-late"),
            )
        case e.StopAsked():
            kill = Kill(sequence="stop", why=event.why, stage="ask", stage_mono=event.mono)
            asked = StopAsk(
                sequence=event.sequence,
                wall=event.t,
                step=event.step,
                expects_save=event.expects_save,
            )
            state = records.trees(state, kill=kill)
            return _replace(state, state="stopping", stop_asked=asked)
        case e.RequestAnswered(request="stop"):
            return _stop_asked(state, answered_mono=event.mono)
        case e.RequestAnswered():
            return _replace(state, save_answered=event.sequence)
        case e.RequestRefused(request="stop"):
            return _stop_asked(state, refused=True)
        case e.RequestRefused():
            return _replace(state, save_refused=event.sequence)
        case e.SaveProven(request="stop"):
            return _stop_asked(state, saved=event.path)
        case e.SaveProven():
            return _replace(state, save_proven=event.sequence)
        case e.Signalling():
            return _signalling(state, event)
        case e.Signalled():
            return _signalled(state, event)
        case e.CheckpointKept():
            return _kept(state, event)
        case e.CheckpointNotKept():
            return _replace(state, kept_mono=event.mono, keep_failed=True)
        case e.CheckpointRestored():
            return _replace(state, restore_tried=event.attempt)
        case e.CommandsStarting() if event.for_event == BEFORE_RESTART:
            return _replace(state, commands_begun=event.for_attempt)
        case e.CommandsRan() if event.for_event == BEFORE_RESTART:
            return _replace(state, commands_done=event.for_attempt)
        case e.Straggling():
            return _replace(state, straggler=event.straggler)
        case e.Warned(ahead=ahead):
            others = tuple(one for one in state.warned if one.key != ahead.key)
            return _replace(state, warned=others if event.over else (*others, ahead))
        case e.DaemonsJudged():
            known = {one.process: one for one in (*state.daemons, *event.daemons)}
            return _replace(state, daemons=tuple(known.values()))
        case e.TreeGone():
            return _tree_gone(state, event)
        case _:
            return state


def _stop_asked(state: State, **changes: Any) -> State:
    asked = state.stop_asked
    return state if asked is None else _replace(state, stop_asked=_replace(asked, **changes))


def _signalling(state: State, event: e.Signalling) -> State:
    tree = state.tree(event.host)
    before = tree.kill if tree is not None else None
    stage_mono: float = event.mono
    targets: tuple[ProcessId, ...] = ()
    if before is not None and (before.stage, before.signal) == (event.stage, event.signal):
        # Newcomers of the same stage: keep its deadline, or a fork storm would postpone it forever.
        stage_mono, targets = before.stage_mono, before.targets
    kill = Kill(
        sequence=event.sequence,
        why=event.why,
        stage=event.stage,
        stage_mono=stage_mono,
        targets=targets,
        signal=event.signal,
    )
    state = records.trees(state, event.host, kill=kill)
    if event.sequence == "sweep" and event.why.outliving and state.outlived is None:
        state = _replace(state, outlived=_replace(event.why, code="outlived-killed"))
    return _replace(state, state="stopping" if event.stage == "root" else "killing")


def _signalled(state: State, event: e.Signalled) -> State:
    """Only a sent signal counts: a supervisor may have died between its intent and the signal.

    Which signal it was does not matter: a process that ignores Ctrl-C gets SIGTERM instead.
    """
    tree = state.tree(event.host)
    kill = tree.kill if tree is not None else None
    if kill is None or not kill.signal:
        return state
    told = (ProcessId(one.pid, one.start, event.host) for one in event.sent)
    kill = _replace(kill, targets=tuple(dict.fromkeys((*kill.targets, *told))))
    return records.trees(state, event.host, kill=kill)


def _kept(state: State, event: e.CheckpointKept) -> State:
    others = tuple(one for one in state.kept if one.path != event.path)
    kept = KeptCopy(**{name: getattr(event, name) for name in KeptCopy.__struct_fields__})
    return _replace(state, kept=(*others, kept), kept_mono=event.mono, keep_failed=False)


def _tree_gone(state: State, event: e.TreeGone) -> State:
    host = event.host
    elsewhere = tuple(one for one in state.left if one.process.host != host)
    members = tuple(one for one in state.members if one.host != host)
    return _replace(
        records.trees(state, host, gone_at=event.t, kill=None, survivors=()),
        daemons=tuple(one for one in state.daemons if one.process.host != host),
        left=(*elsewhere, *event.left),
        members=members,
        ranks=state.ranks if members else (),
    )
