"""On which machine the fault may lie when a job is given back with exit code 75. Pure.

Whoever starts the job again may leave these machines out. A wrong name costs a healthy machine for
one job, and nobody is named without a reason that a person can check. Of a hang it is the machine
of the guilty rank, as long as that rank was not guilty on another machine before: then it is the
program.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.events import RunFinished
from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.core.job.machines import hostname_of
from watchdog_train.core.model import GuiltyNode, Why
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE, survivors


def with_guilty_nodes(over: RunFinished, state: State) -> RunFinished:
    """The end of a run, with the machines to avoid if it asks for another try elsewhere."""
    if over.exit_code != EXIT_RETRY_ELSEWHERE:
        return over
    here = tuple(
        GuiltyNode(host=hostname_of(tree.host, state), why=why)
        for tree in state.trees
        if tree.survivors
        for why in survivors(state)
    )
    others = (one for one in state.guilty if one.host != state.host or not here)
    return msgspec.structs.replace(over, guilty=(*here, *others))


def of_the_culprit(state: State) -> tuple[GuiltyNode, ...]:
    """The machine of the rank that the evidence of all nodes has found guilty of the hang."""
    stall = _ending(state)
    rank = _rank_of(stall) if stall is not None else None
    if stall is None or stall.culprit_host is None or rank is None or other_hosts(state):
        return ()
    cause = stall.explanation.because if stall.explanation is not None else None
    told = (cause.family, cause.certainty) if cause is not None else ("", "")
    why = Why("guilty", rank=rank, family=told[0], certainty=told[1])
    return (GuiltyNode(host=stall.culprit_host, why=why),)


def other_hosts(state: State) -> tuple[str, ...]:
    """Other machines on which the rank that is guilty now was guilty of earlier hangs."""
    stall = _ending(state)
    if stall is None or _rank_of(stall) is None:
        return ()
    found = (
        one.culprit_host
        for one in state.stalls
        if one.culprit_host is not None and _rank_of(one) == _rank_of(stall)
    )
    return tuple(dict.fromkeys(host for host in found if host != stall.culprit_host))


def _ending(state: State) -> StallRecord | None:
    """The stall or crash that ends the present attempt."""
    attempt = state.attempt
    return state.stall(attempt.stall_id or attempt.crash_id) if attempt is not None else None


def _rank_of(stall: StallRecord) -> int | None:
    """The one rank that was seen to hold up all others, on the evidence of several machines."""
    told = stall.explanation
    if told is None or told.root is None or not stall.joint or stall.culprit_host is None:
        return None
    alone = not (told.alike or told.also or told.knot)
    return told.root.who.rank if alone and told.kind == "hang" else None
