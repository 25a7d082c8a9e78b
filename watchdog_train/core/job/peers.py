"""What the supervisors of one job tell each other, as values. Pure.

Each supervisor owns one record and replaces it whole, about once a second and whenever its stage
changes; it reads those of the others. That is all a backend has to offer (see peers/): no lock, no
order between records, no common clock. A record that does not change any more says nothing.

Stages of an attempt that has to end, as the records show them:

    trouble       somebody has found a reason (a stall, a crash): everybody takes evidence
    dumped        the evidence of this task is on disk; when all have it, or at the deadline,
                  and not before, the killing begins
    gone          nothing of this task's attempt lives any more; when all are, the leader plans
    proposal      the leader's plan; the others take it over, and say so in `agreed`
    attempt N     launched, once all have agreed to the same plan

The leader is the living task with the lowest number. Two that both believe to be it do no harm: a
plan is launched only when every task has agreed to that very plan, and a task that has agreed
changes to another plan only in one direction (a higher attempt, then a lower proposer), never after
its launch. So no two tasks of one attempt run under different plans.
"""

from __future__ import annotations

from typing import Literal

from watchdog_train.core.fold.state import Agreed, RunState, StallRecord, State, plan_digest
from watchdog_train.core.job.peer_words import (
    GaveUp,
    SaveWord,
    StopWord,
    gave_up,
    save_word,
    stop_word,
)
from watchdog_train.core.model import Explanation, Plan, Value, Why
from watchdog_train.core.recovery.outcome import exited
from watchdog_train.core.recovery.plans import launcher_environment
from watchdog_train.core.starting.jobs import JobTask

SCHEMA_VERSION = 1
PASSING: tuple[str | None, ...] = ("quiet", "finishing")
"""Bases of a stall that is over as soon as any rank of the job makes progress."""


class Signs(Value, frozen=True, kw_only=True):
    """The signs of life of one tree, as a peer wants to know them."""

    quiet: bool = False
    """Nothing worth calling work in enough windows, all after the last progress."""
    progressed: int = 0
    """Looks at which a judged process had progressed; only ever grows in one supervisor."""
    age_s: float | None = None
    """Since the last progress, by that supervisor's clock; None when it has seen none."""
    ranks: int = 0
    """Ranks of this attempt that are here, or were: see core.detection.track."""
    world: int | None = None
    """The largest WORLD_SIZE that a process of the tree has named."""
    step: int | None = None
    """The newest step of any rank."""
    over: bool = False
    """The training itself is over for every rank that is here."""
    can_save: bool = False
    can_stop: bool = False
    """Its ranks listen to such a request."""

    @property
    def whole(self) -> bool | None:
        """Whether the world it trains is all in this tree; None while that is not known."""
        return None if self.world is None else self.world <= self.ranks


class Trouble(Value, frozen=True, kw_only=True):
    """Why the present attempt of a task has to end."""

    kind: Literal["stall", "crash"]
    own: bool
    """Found in this task's own tree; False: taken over from a peer that had announced it."""
    firm: bool
    """Progress of another rank does not end it."""
    over: bool
    """The training itself was finished: nothing has to be restarted for it."""
    why: Why
    code: int | None = None
    signal: int | None = None
    """Of a crash."""
    explanation: Explanation | None = None
    """None until the evidence is there."""
    fingerprint: str | None = None
    bundle: str | None = None
    """Directory of the evidence; None until it is there."""


class Proposal(Value, frozen=True, kw_only=True):
    """A plan for the whole job, and what a follower needs to make its own of it."""

    proposer: int
    plan: Plan
    base_argv: tuple[str, ...]
    """The proposer's command, before anything was added for the resume."""
    env: dict[str, str]
    """Of the plan's, what is for every task: the settings, not the proposer's own launcher."""
    delay_s: float

    @property
    def digest(self) -> str:
        """The same for the same plan of the same proposer."""
        return plan_digest(self.proposer, self.plan)

    @property
    def order(self) -> tuple[int, int]:
        """Of two proposals the one that comes first wins."""
        return (-self.plan.attempt, self.proposer)


class Summary(Value, frozen=True, kw_only=True):
    """What one task tells the others."""

    v: int = SCHEMA_VERSION
    task: int
    sequence: int = 0
    """Grows with every publication of one supervisor."""
    run_id: str
    run_dir: str
    host: str
    machine: str = ""
    """Within which a pid means something: host, boot and pid namespace; empty: not known."""
    pid: int
    start: int
    """The supervisor."""
    attempt: int
    state: RunState
    signs: Signs
    together: bool
    """This task knows that it trains one world with its peers."""
    trouble: Trouble | None
    dumped: bool
    """No evidence is to be taken here before a kill any more."""
    killing: bool
    gone: bool
    """Nothing of the attempt lives any more."""
    done: bool
    """The training has ended by itself, with success."""
    proposal: Proposal | None
    agreed: Agreed | None
    gave_up: GaveUp | None
    stop: StopWord | None
    save: SaveWord | None = None
    finished: int | None
    """Exit code, once this supervisor has nothing left to do."""
    places: tuple[str, ...] = ()
    """Where its ranks save: only the task of rank 0 may know."""
    unseen: tuple[str, ...] = ()
    """Checkpoints that another task has chosen and this machine does not see."""


class PeerView(Value, frozen=True, kw_only=True):
    """A peer as this supervisor sees it."""

    summary: Summary
    heard_s: float
    """Since its sequence number last changed, by our own clock."""
    progressed_at: float = 0.0
    """When its count of progress last changed, by our own clock; 0: not while we looked."""
    alive: bool | None = None
    """Whether its supervisor's process lives; None where that cannot be told."""


class Heard(Value, frozen=True, kw_only=True):
    """What a reader remembers of a peer's record between two looks."""

    summary: Summary
    changed_at: float
    progressed_at: float = 0.0

    def view(self, now: float, *, alive: bool | None) -> PeerView:
        """The peer at this moment."""
        return PeerView(
            summary=self.summary,
            heard_s=max(0.0, now - self.changed_at),
            progressed_at=self.progressed_at,
            alive=alive,
        )


def hear(before: Heard | None, summary: Summary, now: float) -> Heard:
    """After one more look at a peer's record; `now` is the reader's own clock."""
    if before is None:
        return Heard(summary=summary, changed_at=now)
    old = before.summary
    same_supervisor = (old.pid, old.start) == (summary.pid, summary.start)
    if same_supervisor and summary.sequence <= old.sequence:
        return before
    # A new supervisor of the same run counts from zero: that is no progress.
    moved = same_supervisor and old.signs.progressed != summary.signs.progressed
    progressed_at = now if moved else before.progressed_at
    return Heard(summary=summary, changed_at=now, progressed_at=progressed_at)


class JobView(Value, frozen=True, kw_only=True):
    """The peers of this task at one moment."""

    peers: tuple[PeerView, ...] = ()
    """Those that have been heard of, by number."""
    visible: tuple[tuple[str, bool], ...] = ()
    """Checkpoints of proposed plans, and whether this machine sees them; absent: not told yet."""
    listened_s: float = 0.0
    """How long we have listened: since then nothing was heard of those that are missing above."""


def called(summary: Summary, job: JobTask) -> str:
    """A peer's name for a person; of tasks on several machines with its host."""
    where = f" ({summary.host[:64]})" if job.coordination is not None else ""
    return f"{job.kind} {summary.task}{where}"


def summarise(state: State, signs: Signs) -> Summary | None:
    """The record of the task whose state this is, without its sequence number; None of no task."""
    job, attempt, supervisor = state.job, state.attempt, state.supervisor
    if job is None or supervisor is None:
        return None
    return Summary(
        task=job.task.task,
        run_id=state.run_id,
        run_dir=state.run_dir,
        host=state.host,
        pid=supervisor.pid,
        start=supervisor.start,
        attempt=attempt.attempt if attempt is not None else 0,
        state=state.state,
        signs=signs,
        together=job.together,
        trouble=trouble_of(state),
        dumped=is_dumped(state),
        killing=state.kill is not None or (attempt is not None and attempt.barrier),
        gone=attempt is not None and attempt.tree_gone,
        done=is_done(state),
        proposal=own_proposal(state),
        agreed=job.agreed,
        gave_up=gave_up(state),
        stop=stop_word(state),
        save=save_word(state),
        finished=state.exit_code if state.finished else None,
        unseen=tuple(path for task, path, _ in job.unseen if task == job.task.task),
    )


def is_done(state: State) -> bool:
    """Whether the training of this task has ended as it should: by itself, or hung when over."""
    attempt = state.attempt
    if attempt is None or not attempt.ended or not attempt.launched:
        return False
    if attempt.stall_id is None:
        return attempt.code == 0
    stall = bundle_of(state)
    return stall is not None and stall.basis == "finishing"


def bundle_of(state: State) -> StallRecord | None:
    """The stall or crash that ends the present attempt."""
    attempt = state.attempt
    wanted = attempt and (attempt.stall_id or attempt.crash_id)
    return next((stall for stall in state.stalls if stall.id == wanted), None)


def is_dumped(state: State) -> bool:
    """Whether no evidence is to be taken any more before something of the attempt is killed."""
    attempt = state.attempt
    if attempt is None:
        return False
    if attempt.tree_gone or (attempt.ended and (is_done(state) or attempt.root is None)):
        return True
    if state.stop is not None and state.stop.mode == "now":
        return True
    bundle = bundle_of(state)
    return bundle is not None and bundle.collected and not bundle.collecting


def trouble_of(state: State) -> Trouble | None:
    """Why the present attempt of this task has to end, None while it has not."""
    attempt, bundle = state.attempt, bundle_of(state)
    if attempt is None:
        return None
    explanation = bundle.explanation if bundle is not None else None
    fingerprint = bundle.fingerprint if bundle is not None else None
    folder = bundle.dir if bundle is not None and bundle.collected else None
    if attempt.stall_id is not None and bundle is not None:
        return Trouble(
            kind="stall",
            own=bundle.basis != "peer" and attempt.cause is None,
            firm=bundle.basis not in PASSING,
            over=bundle.basis == "finishing",
            why=bundle.verdict,
            explanation=explanation,
            fingerprint=fingerprint,
            bundle=folder,
        )
    if not attempt.ended or is_done(state):
        return None
    return Trouble(
        kind="crash",
        own=True,
        firm=True,
        over=False,
        why=exited(attempt),
        code=attempt.code,
        signal=attempt.signal,
        explanation=explanation,
        fingerprint=fingerprint,
        bundle=folder,
    )


def own_proposal(state: State) -> Proposal | None:
    """The plan that this task has proposed last, also after its launch: who comes late needs it."""
    job, attempt = state.job, state.attempt
    if job is None or job.agreed is None or job.agreed.proposer != job.task.task:
        return None
    launched = attempt.plan if attempt is not None else None
    for plan in (state.next_plan, launched):
        if plan is not None and plan.attempt == job.agreed.attempt:
            return Proposal(
                proposer=job.task.task,
                plan=plan,
                base_argv=state.argv,
                env=_for_all(plan, state),
                delay_s=state.backoff_s,
            )
    return None


def _for_all(plan: Plan, state: State) -> dict[str, str]:
    own = launcher_environment(state, plan.attempt)
    return {name: value for name, value in plan.env.items() if own.get(name) != value}
