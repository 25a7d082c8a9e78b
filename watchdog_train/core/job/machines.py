"""Rules of decide() for a supervisor with agents on other machines, or for other tasks. Pure.

All else works on trees, one per machine. These are about agents that have not come yet, do not
report or are given up: an unreported state is unknown, and no reason for a kill or a launch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    UNHEARD_S,
    Action,
    Observation,
    Record,
    StartJoint,
    Wait,
)
from watchdog_train.core.fold.state import Machine, StallRecord, State, Tree
from watchdog_train.core.model import Explanation, GuiltyNode, Plan, ProcessId, Why, written
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.outcome import give_up, survivors
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.core.suspect import next_stall_id
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE

LOOK_AGAIN_S = 0.05
SAY_AFTER_S = 5.0
SURE_S = 30.0
"""Seconds after which all ranks of one task are born."""
STOPPING_S = 30.0
"""Seconds in which a silent machine may report again, once the run is stopped."""
PEERS: Final = "peers"
JOINT: Final = "joint"
MOST_JOINT = 128
"""Machines whose evidence one explanation uses: it takes 30 ms each."""
FOLDER = "machines"
"""In an attempt or a bundle: one folder per machine, with its agent's files."""


def world_elsewhere(task: JobTask, observation: Observation, state: State) -> Record | None:
    """Reported once, if the ranks of a task without leader train one world with other tasks.

    Each task of a sweep trains its own world. Ranks not yet born are no sign of others, so
    nothing is concluded before a step, the end of the attempt, or SURE_S.
    """
    attempt, signs = state.attempt, observation.signs
    if attempt is None or PEERS in state.notices or state.stop or state.kill:
        return None
    if not signs.ranks or signs.whole is not False or (signs.world or 0) < task.tasks:
        return None
    begun = attempt.launched and observation.now - attempt.launching_mono >= SURE_S
    if not (begun or attempt.ended or signs.step is not None):
        return None
    why = Why("world-elsewhere", count=signs.ranks, of=signs.world)
    return Record(events=(e.Noticed(kind=PEERS, pids=(), why=why),))


def launched(root: ProcessId, keeper: ProcessId, host: str) -> e.AttemptLaunched:
    return e.AttemptLaunched(
        where=written(host),
        pid=root.pid,
        start=root.start,
        keeper_pid=keeper.pid,
        keeper_start=keeper.start,
    )


def hear(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """Record which agent speaks for each machine, and which machines do not report."""
    silent = dict(state.crew.silent) if state.crew is not None else {}
    found: list[e.AnyEvent] = []
    for sight in observation.trees:
        since = observation.wall - sight.silent_s
        known = machine_of(sight.host, state)
        again = sight.is_heard and sight.host in silent
        if sight.silent_s >= UNHEARD_S and known is not None and sight.host not in silent:
            found.append(e.MachineSilent(where=sight.host, since=since))
        elif sight.agent is not None and (again or sight.agent != known):
            heard = e.MachineHeard(
                where=sight.host,
                hostname=sight.agent.hostname,
                place=sight.agent.place,
                run_dir=sight.agent.run_dir,
                agent=sight.agent.agent,
                silent_s=round(since - silent.get(sight.host, since), 1),
            )
            found.append(heard)
    return Record(events=tuple(found)) if found else None


def claim(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """Record a living attempt of an earlier run's leader as this run's own, which has exited.

    So its processes are killed before anything is launched.
    """
    attempt = state.attempt
    others = {sight.host: sight.other for sight in observation.trees if sight.other}
    if not others or state.stop is not None or state.given_up is not None:
        return None
    if attempt is not None and not attempt.settled:
        return None
    number = min(others.values())
    why = Why("leader-anew")
    plan = Plan(
        attempt=number,
        why=why,
        argv=state.argv,
    )
    hosts = ("", *(host for host, other in others.items() if other == number))
    begun = e.AttemptLaunching(token="", plan=plan, where=hosts)
    gone = e.AttemptExited(code=None, signal=None, how_known="gone", step=None, error=why)
    return Record(events=(begun, gone))


def gather(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Launch nothing before every agent reports: a silent machine may be at work."""
    attempt = state.attempt
    if state.stop is not None or state.given_up is not None:
        return None
    if attempt is not None and (not attempt.settled or state.next_plan is None):
        return None
    missing = [sight.host for sight in observation.trees if not sight.is_heard]
    if not missing:
        return _see(observation, state)
    waited_s = max(observation.of(host).silent_s for host in missing)
    who = ", ".join(names_of(missing, state))
    begins = attempt is None or any(machine_of(host, state) is None for host in missing)
    if waited_s >= (policy.job.gather_s if begins else policy.job.lost_s):
        why = Why("not-come", who=who, limit_s=waited_s)
        return give_up(why, EXIT_RETRY_ELSEWHERE)
    if waited_s >= SAY_AFTER_S and PEERS not in state.notices:
        why = Why("waits-for-agents", who=who)
        return Record(events=(e.Noticed(kind=PEERS, pids=(), why=why),))
    return Wait(until=observation.now + LOOK_AGAIN_S)


def _see(observation: Observation, state: State) -> Action | None:
    """Pass over a checkpoint that some machine does not see: it could not be loaded."""
    plan = state.next_plan
    if plan is None or plan.checkpoint is None:
        return None
    sights = {sight.host: sight.sees for sight in observation.trees}
    unseen = [host for host, sees in sights.items() if sees is False]
    if unseen:
        (who, *_) = names_of(unseen, state)
        used, why = plan.checkpoint, Why("unseen", who=who)
        return Record(events=(e.CheckpointRejected(path=used.path, format=used.format, why=why),))
    return Wait(until=observation.now + LOOK_AGAIN_S) if None in sights.values() else None


def lose(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Give up a machine, and so the job, once no machine that reports makes steps.

    Until `job.lost_s` a link may recover; while ranks make steps, the silent ones do, too.
    """
    attempt, stopping = state.attempt, state.stop is not None
    if attempt is None or attempt.settled:
        return None
    limit_s = STOPPING_S if stopping else policy.job.lost_s
    lost = [
        tree
        for tree in attempt.trees
        if not (tree.settled or observation.of(tree.host).silent_s < limit_s)
    ]
    heard_end = all(tree.ended for tree in attempt.trees if tree not in lost)
    if not lost or not (heard_end or stopping or observation.signs.quiet):
        return None
    (who, *_) = names_of([lost[0].host], state)
    why = Why("machine-lost", who=who, seconds=observation.of(lost[0].host).silent_s)
    gone = e.MachineLost(where=written(lost[0].host), why=why)
    if state.given_up is not None or stopping:
        return Record(events=(gone,))
    guilty = _guilty(lost[0].host, state, why)
    left = leave(observation, state, why, guilty=guilty, over=heard_end)
    # Last: a successor repeats everything that a dying supervisor did not record.
    return Record(events=(*(left.events if left is not None else ()), gone))


def _guilty(host: str, state: State, why: Why) -> tuple[GuiltyNode, ...]:
    name = hostname_of(host, state)
    return (GuiltyNode(host=name, why=why),) if name not in ("", state.host) else ()


def leave(
    observation: Observation,
    state: State,
    why: Why,
    *,
    guilty: tuple[GuiltyNode, ...] = (),
    over: bool = False,
) -> Record | None:
    """Take evidence, kill what is here and give the job back: no other machine reports.

    `over`: the local processes have ended.
    """
    attempt, verdict = state.attempt, observation.verdict
    given_up = e.GivenUp(why=why, exit_code=EXIT_RETRY_ELSEWHERE, outcome="gave_up", guilty=guilty)
    if over or attempt is None or attempt.ended or attempt.stall_id is not None:
        return Record(events=(given_up,))
    if not observation.signs.quiet:
        return None
    stall = e.StallDeclared(
        stall_id=next_stall_id(observation, state),
        basis="peer",
        phase=verdict.phase,
        ranks=verdict.ranks,
        age_s=round(observation.signs.age_s or 0.0, 1),
        why=why,
    )
    return Record(events=(stall, given_up))


def explain_together(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """One explanation of a hang from the evidence of all machines, before any action.

    A dump on request does not wait for it.
    """
    attempt = state.attempt
    if attempt is None or len(attempt.trees) < 2 or JOINT in state.notices:
        return None
    unexplained = [
        each
        for each in state.stalls
        if each.collected and not each.joint and each.why != "crash" and each.dir is not None
        if each.attempt == attempt.attempt
    ]
    stall = next(iter(unexplained), None)
    if stall is None or stall.dir is None:
        return None
    wanted = set(roots_first(state, stall)[:MOST_JOINT])
    hosts = [each.host for each in attempt.trees if each.evidence == stall.id]
    hosts = [host for host in hosts if host == "" or host in wanted]
    if not hosts:
        return None
    answer = observation.joint
    folders = {folder_of(stall.dir, host): host for host in hosts}
    if answer is None:
        if "joint" in observation.running:
            free = state.stop is not None or all(one.why == "manual" for one in unexplained)
            return None if free else Wait(until=observation.now + LOOK_AGAIN_S)
        return StartJoint(bundles=tuple(folders))
    event: e.AnyEvent
    if answer.explanation is None:
        why = Why("not-joint", option="task", problem=answer.problem or "unknown")
        event = e.Noticed(kind=JOINT, pids=(), why=why)
    else:
        host = folders.get(answer.where or "")
        several = state.task is not None and state.task.coordination is not None
        name = hostname_of(host, state) if several and host is not None else None
        tasks = tuple(number for number, tree in enumerate(attempt.trees) if tree.host in hosts)
        found = _on(answer.explanation, name)
        event = e.StallExplained(stall_id=stall.id, explanation=found, tasks=tasks, host=name)
    return Record(events=(event,), consumes=("joint",))


def roots_first(state: State, stall: StallRecord) -> list[str]:
    """All machines; first those whose processes the others wait for, or that have failed."""
    trees = state.trees
    return [one.host for one in sorted(trees, key=lambda one: not _has_root(one, stall))]


def _has_root(tree: Tree, stall: StallRecord) -> bool:
    return tree.host in stall.roots or (stall.why == "crash" and tree.failed)


def folder_of(bundle: str, host: str) -> str:
    return f"{bundle}/{FOLDER}/{host}" if host else bundle


def machine_of(host: str, state: State) -> Machine | None:
    return state.crew.by_host.get(host) if state.crew is not None else None


def names_of(hosts: list[str], state: State) -> tuple[str, ...]:
    """For a person: `task1 (gpu-17)`."""
    first = state.crew.task.name_of(0) if state.crew is not None else ""
    named = ((host or first, hostname_of(host, state)) for host in hosts)
    return tuple(f"{name} ({hostname})" if hostname else name for name, hostname in named)


def hostname_of(host: str, state: State) -> str:
    """Empty for one that never reported."""
    machine = machine_of(host, state)
    return state.host if not host else machine.hostname if machine is not None else ""


def _on(found: Explanation, hostname: str | None) -> Explanation:
    if found.root is None or hostname is None:
        return found
    who = msgspec.structs.replace(found.root.who, host=hostname)
    return msgspec.structs.replace(found, root=msgspec.structs.replace(found.root, who=who))


# A wrong name costs the job a healthy machine: no machine is named without a reason that a
# person can check. Of a hang it is the machine of the guilty rank, unless that rank was guilty
# on another machine before: then it is the program.
def with_guilty_nodes(over: e.RunFinished, state: State) -> e.RunFinished:
    """The end of a run, with the machines to avoid if another try elsewhere is requested."""
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
    """The machine of the rank that the evidence of all nodes found guilty of the hang."""
    stall = _ending(state)
    rank = _rank_of(stall) if stall is not None else None
    if stall is None or stall.culprit_host is None or rank is None or other_hosts(state):
        return ()
    cause = stall.because
    told = (cause.family, cause.certainty) if cause is not None else ("", "")
    why = Why("guilty", rank=rank, family=told[0], certainty=told[1])
    return (GuiltyNode(host=stall.culprit_host, why=why),)


def other_hosts(state: State) -> tuple[str, ...]:
    """Other machines on which the present guilty rank was guilty of earlier hangs."""
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
    attempt = state.attempt
    return state.stall(attempt.stall_id or attempt.crash_id) if attempt is not None else None


def _rank_of(stall: StallRecord) -> int | None:
    """The one rank that held up all others, by the evidence of several machines."""
    told = stall.explanation
    if told is None or told.root is None or not stall.joint or stall.culprit_host is None:
        return None
    alone = not (told.alike or told.also or told.knot)
    return told.root.who.rank if alone and told.kind == "hang" else None
