"""The kill sequences as states with deadlines: what to signal next, decided from what still lives.

Order matters (all measured): launchers are frozen first because torchrun answers the death of
its ranks with new ranks; ranks and workers die before resource trackers and shared-memory
managers, which then clean up what was leaked; the keeper goes last, because it is the reaper.
"""

from __future__ import annotations

from msgspec.structs import replace

from watchdog_train.core.actions import Action, CleanUp, Observation, Record, Signal, Wait, on_each
from watchdog_train.core.events import KillSequence, KillStage, SurvivedKill
from watchdog_train.core.fold.state import Kill, State, Tree
from watchdog_train.core.model import MemberSample, ProcessId, Sample, Why, written
from watchdog_train.core.policy import Stopping

# Numbers of POSIX; the system layer translates them if they do not exist.
SIGINT, SIGKILL, SIGTERM, SIGSTOP = 2, 9, 15, 19

STAGES: dict[KillSequence, tuple[KillStage, ...]] = {
    "stop": ("ask", "root", "freeze", "terminate", "kill", "helpers", "launchers", "keeper"),
    "hang": ("freeze", "terminate", "kill", "helpers", "launchers", "keeper"),
    "now": ("freeze", "kill", "helpers", "launchers", "keeper"),
    "sweep": ("terminate", "kill", "helpers", "launchers", "keeper"),
}
SIGNALS: dict[KillStage, int] = {
    "freeze": SIGSTOP,
    "terminate": SIGTERM,
    "kill": SIGKILL,
    "helpers": 0,
    "launchers": SIGKILL,
    "keeper": 0,
}
HELPERS = ("resource_tracker", "torch_shm_manager", "forkserver")
"""Names of processes that clean up after the others and then exit."""

CHASED: tuple[KillStage, ...] = ("root", "terminate", "kill", "launchers")
"""Stages that also signal processes not signalled yet: newcomers, and those left out by a
supervisor that died between its intent and the signal."""

WRAPPER_S = 5.0
"""How long a shell may finish its own work after its training has ended: `conda run` prints all
captured output, a script copies its results."""

KEEPER_S = 3.0
"""For the keeper to see the last process exit, and to exit."""
KILL_S = 20.0
"""After SIGKILL; a process that lives longer is in the kernel and is reported so."""
LOOK_AGAIN_S = 0.05


def live(sample: Sample) -> tuple[MemberSample, ...]:
    """Members that can still act and may be killed: not the keeper, not zombies."""
    left = {daemon.process for daemon in sample.daemons if daemon.is_left}
    return tuple(
        member
        for member in sample.members
        if member.member.role != "keeper"
        and member.state not in ("Z", "X")
        and member.member.identity not in left
    )


def nobody_left(observation: Observation) -> bool:
    """Whether two samples agree that no process of the attempt but its keeper lives."""
    samples = [sight.sample for sight in observation.trees]
    return all(sample.empty_looks >= 2 and not live(sample) for sample in samples)


def begin_first(sequence: KillSequence, observation: Observation, state: State, why: Why) -> Action:
    """Begin on the first machine that reports live processes; the others follow."""
    sights = [observation.of(tree.host) for tree in state.trees if not tree.settled]
    samples = [sight.sample for sight in sights if sight.is_heard]
    if not samples:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    first = next((sample for sample in samples if live(sample)), samples[0])
    return begin(sequence, state, first, why)


def pursue_all(
    observation: Observation, state: State, stopping: Stopping, *, ask_until: float
) -> Action | None:
    """The next action of the kill under way: on all machines in the earliest stage that has one.

    A kill begun on one machine is begun on the others; processes that a training left belong to
    their machine.
    """
    if state.kill is None:
        return None
    kills = {tree.host: tree.kill for tree in state.trees if not tree.settled}
    all_kills = (tree.kill for tree in state.trees)  # also where it is over
    begun = next((kill for kill in all_kills if kill and kill.sequence != "sweep"), None)
    by_stage: dict[int, list[Action | None]] = {}
    for host, kill in kills.items():
        sight = observation.of(host)
        sample = sight.sample
        action: Action | None = None
        # A sample from before the agent obeyed this supervisor, or its last signal, proves nothing.
        if not sight.is_heard or (kill is not None and sight.obeyed_at > observation.now):
            action = Wait(until=observation.now + LOOK_AGAIN_S)
        elif kill is not None:
            action = pursue(
                state,
                sample,
                observation.now,
                stopping,
                ask_until=ask_until,
                obeyed_at=sight.obeyed_at,
            )
        elif begun is not None and live(sample):
            action = begin(begun.sequence, state, sample, begun.why)
        by_stage.setdefault(_how_far(kill), []).append(action)
    together = [on_each(by_stage[stage]) for stage in sorted(by_stage)]
    ready = (action for action in together if not isinstance(action, Wait | None))
    return next(ready, None) or on_each(together)


def _how_far(kill: Kill | None) -> int:
    return -1 if kill is None or kill.stage is None else STAGES["stop"].index(kill.stage)


def pursue(
    state: State,
    sample: Sample,
    now: float,
    stopping: Stopping,
    *,
    ask_until: float,
    obeyed_at: float = 0.0,
) -> Action | None:
    """The next action of the sequence under way, None without one.

    A training that was asked to exit may do so until `ask_until`. An agent receives signals later
    than they were decided: at `obeyed_at`.
    """
    tree = state.tree(sample.machine)
    kill = tree.kill if tree is not None else None
    if tree is None or kill is None or kill.stage is None:
        return None
    stage = kill.stage
    kill = replace(kill, stage_mono=max(kill.stage_mono, obeyed_at))
    alive = live(sample)
    if not alive:
        return _keeper(state, tree, kill, sample, now=now)
    hurried = state.stop is not None and state.stop.mode == "now"
    if hurried and kill.sequence == "stop" and stage in ("ask", "root"):
        return begin("now", state, sample, kill.why.plus(Why("now")))
    if stage == "keeper":
        # A process was born after the last sample.
        return begin(kill.sequence, state, sample, kill.why, after="helpers")
    targets = _targets(kill.sequence, stage, alive, state, root=tree.root)
    deadline = kill.stage_mono + _limit_s(stage, stopping, frozen=_frozen(alive))
    if stage == "ask":
        deadline = ask_until
    if stage == "terminate" and kill.sequence == "stop" and state.stop is not None:
        # The signal may have killed a shell: its training has the rest of the grace time to save.
        deadline = max(deadline, state.stop.mono + stopping.grace_s)
    if targets and now < deadline:
        newcomers = tuple(target for target in targets if target not in kill.targets)
        if stage == "root" and any(now < end.at + WRAPPER_S for end in sample.ended):
            newcomers = tuple(one for one in newcomers if one != tree.root)
        if newcomers and kill.signal and stage in CHASED:
            return _signal(sample, kill.sequence, stage, newcomers, kill.signal, why=kill.why)
        return Wait(until=min(deadline, now + LOOK_AGAIN_S))
    if stage == "launchers":
        pids = tuple(member.member.pid for member in alive)
        if tree.survivors == pids:
            return None
        return _survived(sample, pids, _outlived(alive, now - kill.stage_mono))
    why = kill.why
    if stage == "ask":
        asked = state.stop_asked
        late = Why("not-ended-in-time", seconds=now - kill.stage_mono)
        why = why.plus(Why("no-common-step") if asked is not None and asked.refused else late)
    return begin(kill.sequence, state, sample, why, after=stage)


def begin(
    sequence: KillSequence,
    state: State,
    sample: Sample,
    why: Why,
    *,
    after: KillStage | None = None,
) -> Action:
    """The first action of a sequence, or what comes after a stage; never "ask"."""
    alive = live(sample)
    tree = state.tree(sample.machine)
    root, keeper = (tree.root, tree.keeper) if tree is not None else (None, None)
    stages = STAGES[sequence]
    for stage in stages[stages.index(after) + 1 :] if after is not None else stages:
        if stage == "ask":
            continue
        targets = _targets(sequence, stage, alive, state, root=root)
        signal = _root_signal(state) if stage == "root" else SIGNALS[stage]
        if stage == "keeper":
            # The keeper waits for orphans: SIGTERM tells it that some stay on purpose.
            stays = any(daemon.is_left for daemon in sample.daemons)
            targets = (keeper,) if stays and keeper is not None else ()
            signal, why = (SIGTERM if targets else 0), Why("nothing-left")
        elif not targets:
            continue
        return _signal(sample, sequence, stage, targets if signal else (), signal, why=why)
    return Wait(until=sample.at + LOOK_AGAIN_S)


def _signal(
    sample: Sample,
    sequence: KillSequence,
    stage: KillStage,
    targets: tuple[ProcessId, ...],
    signal: int,
    *,
    why: Why,
) -> Signal:
    return Signal(
        host=sample.machine,
        sequence=sequence,
        stage=stage,
        targets=targets,
        signal=signal,
        why=why,
        group=stage == "root" and signal == SIGINT,
    )


def _frozen(alive: tuple[MemberSample, ...]) -> bool:
    """Whether SIGKILL takes effect in none of them before their cgroup is thawed."""
    return all(one.held is not None and one.held.outlives_kill for one in alive)


def _outlived(alive: tuple[MemberSample, ...], seconds: float) -> Why:
    if _frozen(alive):
        return Why("survived-frozen", held=alive[0].held)
    states = tuple(f"{m.member.pid} ({m.state or '?'})" for m in alive[:8])
    return Why("survived", seconds=seconds, names=states)


def _survived(sample: Sample, pids: tuple[int, ...], why: Why) -> Record:
    """These processes are in the kernel or frozen, where no signal kills them."""
    return Record(events=(SurvivedKill(where=written(sample.machine), pids=pids, why=why),))


def _root_signal(state: State) -> int:
    """Ctrl-C reaches training as Ctrl-C; every other request to stop as SIGTERM."""
    return SIGINT if state.stop is not None and state.stop.exit_code == 128 + SIGINT else SIGTERM


def _targets(
    sequence: KillSequence,
    stage: KillStage,
    alive: tuple[MemberSample, ...],
    state: State,
    *,
    root: ProcessId | None,
) -> tuple[ProcessId, ...]:
    launchers = [m for m in alive if m.member.role == "launcher"]
    helpers = [m for m in alive if m.member.name in HELPERS]
    others = [m for m in alive if m not in launchers and m not in helpers]
    chosen: list[MemberSample] = []
    match stage:
        case "ask":
            chosen = [m for m in alive if m.member.identity == root]
            chosen = chosen or [m for m in alive if m.member.role == "rank"]
        case "root":
            chosen = _first_to_hear(alive, root, _root_signal(state))
        case "freeze":
            chosen = launchers
        case "terminate":
            ranks = [m for m in others if m.member.role == "rank"]
            # Without heartbeats no process is known as a rank: signal the root, and what a dead
            # root has left.
            rest = [m for m in others if m.member.identity == root]
            rest = rest or (others if sequence == "stop" else [])
            chosen = others if sequence == "sweep" else ranks or rest
        case "kill":
            chosen = others
        case "helpers":
            chosen = helpers
        case "launchers":
            chosen = list(alive)
    return tuple(m.member.identity for m in chosen)


def _first_to_hear(
    alive: tuple[MemberSample, ...], root: ProcessId | None, signal: int
) -> list[MemberSample]:
    """Who gets a user's stop: the training itself, or a process that handles it on its behalf.

    A shell, `conda run` or `time` dies of SIGTERM at once, and the training behind it learns
    nothing. So such a wrapper is passed over, and exits after the training; one that handles
    SIGTERM (`uv run`, `timeout`, a script with a trap) decides what it means. Ctrl-C goes to the
    root's group as from a terminal, and to trainings outside that group.
    """
    roots = [m for m in alive if m.member.identity == root]
    by_pid = {m.member.pid: m for m in alive}
    chosen: dict[ProcessId, MemberSample] = {}
    for member in alive:
        if member.member.role not in ("launcher", "rank"):
            continue
        told, seen = member, {member.member.pid}
        above = by_pid.get(member.member.ppid)
        while above is not None and above.member.pid not in seen:
            seen.add(above.member.pid)
            handles = signal == SIGTERM and above.handles_sigterm
            if above.member.role in ("launcher", "rank") or handles:
                told = above
            above = by_pid.get(above.member.ppid)
        chosen[told.member.identity] = told
    first = {m.member.identity: m for m in roots if signal == SIGINT}
    return list((first | chosen).values()) or roots


def _limit_s(stage: KillStage, stopping: Stopping, *, frozen: bool) -> float:
    match stage:
        case "root":
            return stopping.grace_s
        case "keeper":
            return KEEPER_S
        case "ask" | "freeze":
            return 0.0
        case "terminate" | "helpers":
            return 0.0 if frozen else stopping.hang_grace_s
        case "kill" | "launchers":
            return 0.0 if frozen else KILL_S


def _keeper(state: State, tree: Tree, kill: Kill, sample: Sample, *, now: float) -> Action | None:
    """Only the keeper is left: two samples must agree before it is over."""
    if sample.empty_looks < 2:
        return Wait(until=now + LOOK_AGAIN_S)
    seen = (one.member.identity for one in sample.members if one.member.role == "keeper")
    keeper = tree.keeper or next(seen, None)  # one that has reported nothing is only seen
    if keeper is None or not sample.keeper_alive:
        return CleanUp(host=sample.machine)
    if kill.stage != "keeper":
        return begin(kill.sequence, state, sample, kill.why, after="launchers")
    if kill.signal != SIGKILL and now >= kill.stage_mono + KEEPER_S:
        return _signal(sample, kill.sequence, "keeper", (keeper,), SIGKILL, why=Why("keeper-stays"))
    if kill.signal == SIGKILL and now >= kill.stage_mono + KILL_S:
        if tree.survivors:
            return None
        return _survived(sample, (keeper.pid,), Why("keeper-survived"))
    return Wait(until=now + LOOK_AGAIN_S)
