"""Small builders of what the core sees: slots, members, polls, observations, histories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.actions import Observation, TreeSight
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model.waits import SleepWait
from watchdog_train.core.policy import WaitLimits
from watchdog_train.core.replay import unseen
from watchdog_train.core.starting.jobs import JobTask

KEEPER, ROOT = 9, 10
"""Pids; every process here has its pid plus 1000 as its start time."""
ARGV = ("python", "train.py")


def slot(
    pid: int = ROOT, *, words: tuple[int, ...] | int = 0, phase: m.Phase = "train", **changes: Any
) -> m.SlotReading:
    """A heartbeat slot; `words` as a number is the count of optimizer steps."""
    progress = (0, words, 0, 0, 0, 0, 0, 0) if isinstance(words, int) else words
    steps = progress[1]
    reading = m.SlotReading(
        pid=pid,
        start=pid + 1000,
        role="rank",
        rank=0,
        local_rank=0,
        world_size=1,
        attempt=1,
        progress=progress,
        step=steps or None,
        phase=phase,
        phase_entries=1,
        train_ordinal=1,
    )
    return msgspec.structs.replace(reading, **changes)


def member(
    pid: int = ROOT,
    role: m.Role = "other",
    *,
    state: str = "S",
    slot: m.SlotReading | None = None,
    name: str = "python",
    rank: int | None = None,
    waits_for_input: bool | None = False,
    ppid: int = KEEPER,
    handles_sigterm: bool | None = None,
) -> m.MemberSample:
    """A member at one poll."""
    who = m.Member(pid=pid, start=pid + 1000, role=role, rank=rank, ppid=ppid, name=name)
    return m.MemberSample(
        member=who,
        state=state,
        cpu_s=0.0,
        slot=slot,
        waits_for_input=waits_for_input,
        handles_sigterm=handles_sigterm,
    )


def rank(
    pid: int = ROOT, number: int = 0, *, state: str = "S", ppid: int = KEEPER, **of_slot: Any
) -> m.MemberSample:
    """A rank process with its slot."""
    of_slot = {"own_began": of_slot.get("first_step"), **of_slot}
    reading = slot(pid, rank=number, **of_slot)
    return member(pid, "rank", state=state, slot=reading, rank=number, ppid=ppid)


def keeper() -> m.MemberSample:
    """The keeper as a member."""
    return member(KEEPER, "keeper", name="keeper", ppid=1)


def sample(at: float, *members: m.MemberSample, **changes: Any) -> m.Sample:
    """A poll; nothing has happened in it unless told."""
    poll = m.Sample(
        at=at,
        members=members,
        cpu_s=0.0,
        io_bytes=0,
        tcp_bytes=0,
        log_bytes=0,
        births=len(members),
        deaths=0,
        keeper_alive=True,
        suspended_s=0.0,
    )
    return msgspec.structs.replace(poll, **changes)


def observation(poll: m.Sample, verdict: Verdict | None = None, **changes: Any) -> Observation:
    """What decide() sees, of one machine."""
    names = [name for name in changes if name in TreeSight.__struct_fields__]
    sight = TreeSight(sample=poll, **{name: changes.pop(name) for name in names})
    here = {name for name in sight.running if name in ("look", "evidence")}
    seen = Observation(
        now=poll.at,
        wall=1e9 + poll.at,
        trees=(msgspec.structs.replace(sight, running=frozenset(here)),),
        running=sight.running - here,
        sample=poll,
        verdict=verdict or Verdict(kind="alive"),
    )
    return msgspec.structs.replace(seen, **changes)


def plan(attempt: int = 1) -> m.Plan:
    """A plan that changes nothing."""
    return m.Plan(attempt=attempt, why=m.said("test"), argv=ARGV)


def explained(
    *remedies: str,
    family: str | None = None,
    rank: int | None = None,
    certainty: m.Certainty = "likely",
) -> m.Explanation:
    """A rank that sleeps, with its cause and what may help."""
    root = m.Standstill(who=m.Who(pid=12, role="rank", rank=rank), doing=SleepWait())
    cause = m.Because(family=family or "", certainty=certainty)
    return m.Explanation(
        kind="hang",
        root=None if rank is None else root,
        because=cause if family else None,
        remedies=tuple(m.Remedy(name=name, by="family") for name in remedies),
    )


def unknown_look(found: Verdict) -> m.EvidenceResult:
    """A stack sample without stacks, by the limits of an unknown wait."""
    row: m.PatienceRow = "stopped" if found.stopped else "unknown"
    limits = WaitLimits()
    limit_s = limits.unknown_early_s if found.early else limits.unknown_s
    return unseen(m.Patience(row=row, limit_s=None if found.stopped else limit_s))


def result(stall_id: str = "0001", **changes: Any) -> m.EvidenceResult:
    """What a collector brought back."""
    brought = m.EvidenceResult(
        stall_id=stall_id,
        dir=f"/r/stalls/{stall_id}",
        explanation=explained(),
        patience=m.Patience(limit_s=75.0),
        fingerprint="f",
        seconds=0.5,
    )
    return msgspec.structs.replace(brought, **changes)


RUN_STARTED = e.RunStarted(
    run_id="r",
    name="train",
    boot_id="b",
    host="h",
    pid=1,
    start=1,
    argv=ARGV,
    cwd="/w",
    run_dir="/r",
    slot_dir=None,
    wtrain_version="0",
)


def node_task(number: int, coordination: str | None, *, tasks: int = 2) -> JobTask:
    """A node of a job of Slurm, under a supervisor of its own."""
    return JobTask(
        job="slurm:1.0",
        source="slurm",
        task=number,
        tasks=tasks,
        here=1,
        kind="node",
        coordination=coordination,
    )


def stall(stall_id: str = "0001", **changes: Any) -> e.StallDeclared:
    """A stall in training."""
    declared = e.StallDeclared(
        stall_id=stall_id, basis="quiet", phase="train", ranks=(0,), age_s=30.0, why=m.said("quiet")
    )
    return msgspec.structs.replace(declared, **changes)


def collecting(stall_id: str = "0001", why: Any = "stall") -> e.EvidenceCollecting:
    """The intent to collect."""
    return e.EvidenceCollecting(stall_id=stall_id, why=why, dir="/r/stalls/" + stall_id)


def collected(stall_id: str = "0001", why: Any = "stall") -> e.EvidenceCollected:
    """A bundle is on disk."""
    return e.EvidenceCollected(
        stall_id=stall_id,
        why=why,
        dir="/r/stalls/" + stall_id,
        captured=1,
        missing=(),
        processes=(),
        seconds=1.0,
        fingerprint="f",
        problem=None,
    )


def exited(
    code: int | None = 0, signal: int | None = None, how_known: str = "keeper-file", **changes: Any
) -> e.AttemptExited:
    """The root has ended."""
    event = e.AttemptExited(code=code, signal=signal, how_known=how_known, step=None)
    return msgspec.structs.replace(event, **changes)


def rank_ended(rank: int = 1, **changes: Any) -> e.RankEnded:
    """Rank 1 of two has failed."""
    end = m.RankEnd(
        rank=rank,
        pid=ROOT + rank,
        start=ROOT + rank + 1000,
        world_size=2,
        step=5,
        phase="train",
        at=0.0,
        code=1,
    )
    return e.RankEnded(end=msgspec.structs.replace(end, **changes))


def stop(mode: Any = "soft", code: int = 77) -> e.StopRequested:
    """A user's stop."""
    return e.StopRequested(by="wtrain stop", mode=mode, exit_code=code)


def running(*more: e.AnyEvent, at: float = 0.0) -> State:
    """A run whose first attempt was launched, and what happened then, all at one moment."""
    launched = e.AttemptLaunched(
        pid=ROOT, start=ROOT + 1000, keeper_pid=KEEPER, keeper_start=KEEPER + 1000
    )
    first = (RUN_STARTED, e.PlanMade(plan=plan()), e.AttemptLaunching(token="t", plan=plan()))
    return fold((*first, launched, *more), at=at)


def crashed(*more: e.AnyEvent) -> State:
    """Attempt 1 has crashed and is gone, and its evidence is there."""
    evidence = collecting("0001", "crash"), collected("0001", "crash")
    return running(*evidence, exited(1), e.TreeGone(), *more)


def waiting() -> State:
    """The same, and attempt 2 is planned."""
    return crashed(e.PlanMade(plan=plan(2)))


def fold(history: Iterable[e.AnyEvent], *, at: float = 0.0) -> State:
    """The state after events, stamped as the log stamps them."""
    return replay(
        msgspec.structs.replace(event, seq=number, mono=at, t=1e9 + at, attempt=1)
        for number, event in enumerate(history, start=1)
    )
