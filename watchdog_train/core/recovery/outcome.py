"""How a run ends: outcome, exit code, warnings, and that no further attempt is due. Pure."""

from __future__ import annotations

import shlex

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, TaskName
from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.events import RunFinished
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import CheckpointRef, GuiltyNode, Outcome, Why, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import kill
from watchdog_train.core.recovery.plans import sure_option, with_arguments
from watchdog_train.errors import EXIT_GAVE_UP, EXIT_REFUSED, EXIT_RETRY_ELSEWHERE


def finish(state: State) -> RunFinished:
    attempt = state.attempt
    if state.stop is not None:
        asked = state.stop_asked  # to save and stop: whether the save was seen
        is_unsaved = asked is not None and asked.expects_save and asked.saved is None
        warnings = (*((Why("unsaved"),) if is_unsaved else ()), *survivors(state))
        return _end("stopped", state.stop.exit_code, Why("asked", who=state.stop.by), *warnings)
    if (end := state.given_up) is not None:
        return _end(end.outcome, end.exit_code, end.why)
    if attempt is not None and attempt.code == 0 and attempt.stall_id is None:
        killed = (state.outlived,) if state.outlived is not None else ()
        warnings = (*_doubts(state, attempt), *killed, *survivors(state))
        return _end("succeeded", 0, exited(attempt), *warnings)
    if state.survivors:
        blocked = Why("survivors-block")
        return _end("gave_up", EXIT_RETRY_ELSEWHERE, blocked, *survivors(state))
    if attempt is None:
        return _end("failed", EXIT_REFUSED, Why("nothing-started"))
    if attempt.cannot_start:
        why = Why("command-failed", because=(attempt.error or said(None),))
        return _end("failed", EXIT_REFUSED, why)
    stall = state.last_stall
    if attempt.stall_id is not None and stall is not None and stall.basis == "finishing":
        return _end("succeeded", 0, Why("training-finished"), Why("finished-but-hung"))
    return _end("failed", child_code(attempt), exited(attempt))


def _end(outcome: Outcome, exit_code: int, why: Why, *warnings: Why) -> RunFinished:
    """The event; of several warnings the first has the others behind it."""
    warning = warnings[0].plus(*warnings[1:]) if warnings else None
    return RunFinished(outcome=outcome, exit_code=exit_code, warning=warning, why=why)


def child_code(attempt: AttemptRecord) -> int:
    """The child's own code, 128 + N for signal N, 75 if that is unknown."""
    if attempt.code is not None:
        return attempt.code
    if attempt.signal is not None:
        return 128 + attempt.signal
    return EXIT_RETRY_ELSEWHERE


def exited(attempt: AttemptRecord) -> Why:
    return Why("exited", exit=attempt.code, signal=attempt.signal)


def survivors(state: State) -> tuple[Why, ...]:
    return (Why("survivors", pids=state.survivors),) if state.survivors else ()


def _doubts(state: State, attempt: AttemptRecord) -> tuple[Why, ...]:
    doubts = [Why("exit-not-seen")] if attempt.how_known == "slot" else []
    total = state.progress.total_steps
    if attempt.last_step is None:
        doubts.append(Why("no-step-seen"))
    elif total is not None and attempt.last_step < total:
        doubts.append(Why("ended-early", step=attempt.last_step, of=total))
    doubts += [Why("others-went-on", end=end) for end in state.rank_ends[:4] if has_failed(end)]
    # An earlier attempt saved: the plan's checkpoint, or one that is gone or damaged.
    before = any(one.saves for one in state.attempts if one.attempt < attempt.attempt)
    if attempt.resume == "contradicted":
        doubts.append(Why("began-again"))
    elif attempt.resume != "verified" and (attempt.plan.checkpoint is not None or before):
        doubts.append(Why("not-confirmed"))
    return tuple(doubts)


def give_up(
    why: Why,
    exit_code: int,
    outcome: Outcome = "gave_up",
    *,
    guilty: tuple[GuiltyNode, ...] = (),
    consumes: tuple[TaskName, ...] = (),
) -> Record:
    event = e.GivenUp(why=why, exit_code=exit_code, outcome=outcome, guilty=guilty)
    return Record(events=(event,), consumes=consumes)


def stops_what_began_anew(policy: Policy) -> bool:
    return policy.recovery.on_not_resumed == "stop" and not policy.recovery.observe


def stop_what_began_anew(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Kill an attempt that would save over better checkpoints than its own, and end the run.

    Without SIGTERM, on which many trainings save; also one that was asked to save and stop.
    """
    attempt = state.attempt
    if attempt is None or attempt.resume != "contradicted" or attempt.plan.checkpoint is None:
        return None
    if attempt.ended or not stops_what_began_anew(policy):
        return None
    if state.given_up is None and state.stop is None:
        why = _began_anew(attempt.attempt, attempt.plan.checkpoint, observation, state)
        return give_up(why, EXIT_GAVE_UP)
    for tree in attempt.trees:
        sample = observation.of(tree.host).sample
        gentle = tree.kill is None or tree.kill.sequence == "stop"
        if gentle and kill.live(sample):
            why = Why("not-resumed", attempts=(attempt.attempt,))
            return kill.begin("now", state, sample, why)
    return None


def _began_anew(attempt: int, used: CheckpointRef, observation: Observation, state: State) -> Why:
    options = observation.resume_options or state.resume_options
    if options:
        template = sure_option(options) or options[0]
        command = shlex.join(with_arguments(state.argv, template, used.path))
        way = Why("resume-by-option", option=template, who=command)
    else:
        way = Why("resume-by-script", path=used.path, who=state.run_id)
    copies = [Why("copy-kept", path=x.copy) for x in state.kept if x.path == used.path]
    return Why("stopped-anew", attempts=(attempt,), step=used.step, path=used.path).plus(
        *copies[:1], way, Why("allow-anew")
    )
