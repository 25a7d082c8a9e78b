"""Simulated trainings, poll by poll, as the detector sees them: healthy for hours, then hung.

A training is a row of pieces: a stretch of time in one phase with its rates of CPU, I/O, TCP and
output, and what it gets done. Numbers come from the measurements behind docs/detection.md; where
nothing was measured the range is chosen wide, and said so there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from watchdog_train.core.model import Member, MemberSample, Phase, Sample, SlotReading
from watchdog_train.core.model.explanation import PatienceRow

POLL_S = 1.0
JITTER_S = 0.05


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which the same things happen all the while."""

    seconds: float
    phase: Phase = "train"
    steps: int = 0
    """Optimizer steps, evenly spread, the last one at the end."""
    batches: int = 0
    cpu: float = 1.0
    """Of one core, the whole tree."""
    io: float = 0.0
    """Bytes a second."""
    tcp: float = 0.0
    log: float = 0.0
    states: str = "S"
    """States of processes other than the ranks, in turn, one a poll."""
    births: float = 0.0
    """Processes born and ended, a second."""
    in_line: float = 0.0
    """Share of the time in line for a CPU that others have."""
    suspended: bool = False
    """The machine sleeps: no poll sees it."""
    waiting: bool = False
    """Only rank 0 is in this phase; the others stay where they were and wait."""
    entered: bool = False
    """The phase is entered anew, though it is the same."""
    row: PatienceRow = "unknown"
    """What a look at the waits would find."""


@dataclass(slots=True)
class Job:
    """What one simulated training is like, drawn once."""

    random: Random
    step_s: float
    spread: float
    """Sigma of the logarithm of step times."""
    gpu_quiet: bool
    """Host threads sleep while the GPU works: about 1 % of a core."""
    ranks: int
    hooks: bool
    """Phases and words are seen; without, only output and activity."""
    micro_batches: int
    growing: float
    """Step times at the end over those at the beginning."""
    cpu: float = 1.0
    epoch_steps: int = 1000
    log_every_s: float = 30.0
    pieces: list[Piece] = field(default_factory=list)


def draw_job(random: Random, **fixed: float) -> Job:
    """A training of any kind; `fixed` sets some of its fields."""
    step_s = math.exp(random.uniform(math.log(0.05), math.log(60.0)))
    gpu_quiet = random.random() < 0.35
    job = Job(
        random=random,
        step_s=step_s,
        spread=random.choice([0.03, 0.1, 0.1, 0.2, 0.3, 0.5]),
        gpu_quiet=gpu_quiet,
        ranks=random.choice([1] * 8 + [2, 4]),
        hooks=random.random() < 0.93,
        micro_batches=random.choice([1, 1, 4, 8]),
        growing=random.choice([1.0, 1.0, 1.0, 2.0, 4.0]),
        cpu=random.uniform(0.003, 0.015) if gpu_quiet else random.uniform(0.26, 4.0),
        epoch_steps=random.randint(50, 3000),
        log_every_s=random.choice([5.0, 30.0, 120.0]),
    )
    return replace(job, **fixed)  # type: ignore[arg-type]


PAUSES: tuple[tuple[PatienceRow, float], ...] = (
    ("network", 400.0),
    ("poll", 600.0),
    ("sleep", 600.0),
    ("outsider", 600.0),
    ("nobody-left", 30.0),
    ("unknown", 15.0),
)
"""Healthy, quiet, and how long at most: two thirds of the patience with them."""
HANGS: tuple[PatienceRow, ...] = (
    *("proven", "nobody-left", "fifo", "dead-holder", "unknown") * 2,
    "network",
    "poll",
    "outsider",
)


# -- healthy ------------------------------------------------------------------------------------


def start_up(job: Job) -> Iterator[Piece]:
    """Imports, a download perhaps, loading, tokenising perhaps, the first batch and steps."""
    random = job.random
    cold = random.random() < 0.3
    yield Piece(
        random.uniform(20, 90) if cold else random.uniform(2, 12),
        "startup",
        cpu=random.uniform(0.05, 0.3) if cold else 0.95,
        io=random.uniform(1e5, 2e6) if cold else 1.7e7,
        states="DSS" if cold else "R",
        births=0.3 if cold else 0.0,
    )
    if random.random() < 0.3:
        yield from download(random)
    yield Piece(
        math.exp(random.uniform(math.log(2), math.log(300))),
        "load",
        cpu=random.uniform(0.1, 1.0),
        io=math.exp(random.uniform(math.log(3e5), math.log(5e8))),
        states=random.choice(["S", "DS", "SSSSD"]),
    )
    if random.random() < 0.15:  # tokenising, in processes or not, up to two hours
        yield Piece(
            random.uniform(60, 7200),
            "load",
            cpu=random.uniform(0.8, 2.0),
            io=1.4e4,
            states="R",
            log=20.0,
        )
    spawned = random.random() < 0.3
    yield Piece(
        random.uniform(5, 60) if spawned else random.uniform(0.5, 8),
        "first_step",
        cpu=random.uniform(0.3, 2.0),
        io=1e6,
        births=0.2 if spawned else 0.0,
    )
    if random.random() < 0.2:  # compiled, with autotuning at worst
        yield Piece(
            random.choice([random.uniform(20, 120), random.uniform(120, 2400)]),
            "compile",
            cpu=random.uniform(0.5, 2.0),
            births=0.1,
        )
    for number in range(3):
        warm_up_s = job.step_s * random.uniform(0.2, 3.0) / (number + 1)
        yield Piece(min(warm_up_s, 60.0), "train" if number else "first_step", cpu=0.9)
        yield from steps(job, 1, 0.0)


def download(random: Random) -> Iterator[Piece]:
    """Bytes at any speed down to 10 kB/s, requests without any, connections that stall."""
    speed = math.exp(random.uniform(math.log(1.0e4), math.log(5e7)))
    for _ in range(random.randint(1, 6)):
        yield Piece(random.uniform(0.2, 10), "download", cpu=0.01, tcp=300)  # asks what there is
        yield Piece(
            math.exp(random.uniform(math.log(2), math.log(600))),
            "download",
            cpu=min(0.5, speed / 1e8),
            tcp=speed,
            io=0.0 if speed < 1e5 else speed,
        )
        if random.random() < 0.15:  # stalls; recovers within the timeouts of its library
            yield Piece(random.uniform(10, 60), "download", cpu=0.002)


def train(job: Job, seconds: float) -> Iterator[Piece]:
    """Epochs of steps with everything that healthy trainings do in between."""
    random = job.random
    spent_s = 0.0
    until_eval = random.randint(100, 2000)
    until_save = random.randint(100, 2000)
    until_epoch = job.epoch_steps
    eval_steps = math.exp(random.uniform(math.log(10), math.log(500)))
    save_steps = math.exp(random.uniform(math.log(10), math.log(500)))
    has_eval_phase = random.random() < 0.85
    rank0_only = job.ranks > 1 and random.random() < 0.5
    suspends = random.random() < 0.1
    restarts_workers = random.random() < 0.5
    stalls_s = random.choice([0.0, 5.0, 15.0, 45.0])
    since_eval = since_save = since_epoch = 0
    while spent_s < seconds:
        share = spent_s / seconds
        count = max(1, min(int(20.0 / job.step_s), 200))
        pieces = list(steps(job, count, share))
        since_eval, since_save = since_eval + count, since_save + count
        since_epoch += count
        hours = sum(piece.seconds for piece in pieces) / 3600
        pieces += rare(job, hours, suspends=suspends)
        if since_epoch >= until_epoch:
            since_epoch = 0
            pieces += epoch_end(job, stalls_s, restarts_workers=restarts_workers)
        if since_eval >= until_eval:
            since_eval = 0
            eval_s = min(eval_steps * job.step_s * random.uniform(0.8, 1.2), 7200.0)
            pieces += evaluation(job, eval_s, phase=has_eval_phase, alone=rank0_only)
        if since_save >= until_save:
            since_save = 0
            save_s = min(save_steps * job.step_s * random.uniform(0.8, 1.2), 900.0)
            pieces += checkpoint(job, save_s, alone=rank0_only)
        for piece in pieces:
            spent_s += piece.seconds
            yield piece


def steps(job: Job, count: int, share: float) -> Iterator[Piece]:
    """So many steps; short ones in one piece, long ones each in its own."""
    random = job.random
    log = 100.0 / job.log_every_s
    grown = 1.0 + (job.growing - 1.0) * share
    if job.step_s < 0.5:
        seconds = count * job.step_s * grown * random.uniform(0.95, 1.1)
        yield Piece(seconds, steps=count, batches=count, cpu=job.cpu, log=log)
        return
    for _ in range(count):
        length_s = job.step_s * grown * math.exp(random.gauss(0.0, job.spread))
        parts = job.micro_batches if job.step_s > 2 else 1
        for part in range(parts):
            last = part == parts - 1
            yield Piece(length_s / parts, steps=int(last), batches=1, cpu=job.cpu, log=log)


def rare(job: Job, hours: float, *, suspends: bool) -> list[Piece]:
    """What comes now and then, by how often it does in an hour."""
    random = job.random
    found = []

    def comes(per_hour: float) -> bool:
        return random.random() < per_hour * hours

    if comes(1.0):  # nothing explains it
        found.append(Piece(random.uniform(1, 15), cpu=0.002))
    if comes(0.5):  # an outlier of a heavy tail, at work
        found.append(Piece(random.uniform(3, 20) * min(job.step_s, 6.0), cpu=max(job.cpu, 0.3)))
    if comes(0.3):  # the storage is slow, with state D
        io = random.choice([0.0, 1e5])
        found.append(Piece(random.uniform(5, 120), cpu=0.01, io=io, states="D"))
    if comes(0.3):  # and without
        for _ in range(random.randint(2, 20)):
            found.append(Piece(random.uniform(1, 4), cpu=0.01, io=random.uniform(8e4, 1e6)))
            found.append(Piece(random.uniform(0, 5), cpu=0.005))
    if comes(0.2):  # others have the CPUs, up to a quarter of an hour
        share = random.uniform(0.5, 0.95)
        found.append(
            Piece(random.uniform(20, 900), cpu=random.uniform(0.003, 0.019), in_line=share)
        )
    if comes(0.05):  # a new shape is compiled
        found.append(Piece(random.uniform(10, 120), "compile", cpu=1.0, births=0.2))
    if suspends and comes(0.25):
        found.append(Piece(random.uniform(60, 30_000), suspended=True))
        found.append(Piece(random.uniform(0, 8), cpu=0.01))
    if comes(0.3):  # a pause with a reason that a look finds
        row, longest_s = random.choice(PAUSES)
        found.append(Piece(random.uniform(10, longest_s), cpu=0.003, row=row))
    return found


def epoch_end(job: Job, stalls_s: float, *, restarts_workers: bool) -> list[Piece]:
    """New workers, or a wait for data that is at work, or a quiet one."""
    random = job.random
    found = []
    if restarts_workers:
        found.append(Piece(random.uniform(1, 30), cpu=random.uniform(0.3, 2), births=0.5, io=1e6))
    if stalls_s:
        found.append(Piece(random.uniform(0, stalls_s), cpu=0.05, io=random.uniform(1e5, 1e7)))
        found.append(Piece(random.uniform(0, 15), cpu=0.004))
    return found


def evaluation(job: Job, seconds: float, *, phase: bool, alone: bool) -> list[Piece]:
    """Batches, then a metric; generating moves no batch for minutes, but is work all the while."""
    random = job.random
    where: Phase = "eval" if phase else "train"
    kind = random.choice(["batches", "batches", "generate"])
    if kind == "generate":
        row = [Piece(seconds, where, cpu=max(job.cpu, random.uniform(0.3, 1.0)), waiting=alone)]
    else:
        batch_s = max(0.05, job.step_s / 3)
        count = max(1, int(seconds / batch_s))
        if batch_s < 0.5:
            row = [Piece(seconds, where, batches=count, cpu=job.cpu, waiting=alone)]
        else:
            row = [
                Piece(batch_s, where, batches=1, cpu=job.cpu, waiting=alone)
                for _ in range(min(count, 3000))
            ]
    metric_s = random.choice([0.1, random.uniform(0, 10), random.uniform(10, 600)])
    row.append(Piece(metric_s, where, cpu=1.0, waiting=alone))
    return row


def checkpoint(job: Job, seconds: float, *, alone: bool) -> list[Piece]:
    """Serialised at work, written in bursts, waited for in the kernel."""
    random = job.random
    row = [Piece(0.3 * seconds, "checkpoint", cpu=0.8, io=1e7, waiting=alone)]
    left_s = 0.7 * seconds
    while left_s > 0:
        part_s = min(left_s, random.uniform(1, 10))
        left_s -= part_s
        row.append(
            random.choice(
                [
                    Piece(part_s, "checkpoint", cpu=0.05, io=2.2e5, states="DS", waiting=alone),
                    Piece(part_s, "checkpoint", cpu=0.3, io=1e8, waiting=alone),
                    Piece(part_s, "checkpoint", cpu=0.01, states="D", waiting=alone),
                ]
            )
        )
    return row


# -- hung ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hang:
    """How it hangs."""

    kind: str
    """quiet, prints, kernel, busy."""
    piece: Piece


def draw_hang(random: Random, phase: Phase, seconds: float) -> Hang:
    """What a hung tree was measured to do: next to nothing, or everything in vain."""
    quiet = Piece(
        seconds,
        phase,
        cpu=random.choice([0.0, 0.002, random.uniform(0.0, 0.013)]),
        io=random.choice([0.0, 0.0, 331.0, 4400.0]),
        tcp=random.choice([0.0, 0.0, 0.0, 60.0]),
        in_line=random.choice([0.0, 0.0, random.uniform(0.0, 0.15)]),
        row=random.choice(HANGS),
    )
    kind = random.choice(["quiet"] * 17 + ["prints", "kernel", "busy"])
    match kind:
        case "prints":  # something in it goes on to complain
            return Hang(kind, replace(quiet, log=100.0 / random.uniform(20, 90)))
        case "kernel":
            return Hang(kind, replace(quiet, states="D"))
        case "busy":
            return Hang(kind, replace(quiet, cpu=1.0))
        case _:
            return Hang(kind, quiet)


# -- seen ---------------------------------------------------------------------------------------


class Polls:
    """The polls of a training, in order; `at` is the time by the supervisor's clock."""

    def __init__(self, job: Job, pieces: Iterable[Piece], *, poll_s: float = POLL_S) -> None:
        self.job = job
        self.at = 0.0
        self.suspended_s = 0.0
        self.progressed_at: list[float] = []
        """When any word had changed, by polls."""
        self._poll_s = poll_s
        self._pieces = iter(pieces)
        self._cpu_s = self._io = self._tcp = self._log = self._births = 0.0
        self._in_line_s = 0.0
        self._steps = self._batches = 0
        self._slots = [_slot(1000 + number, number, job.ranks) for number in range(job.ranks)]
        self._members: tuple[MemberSample, ...] = ()
        self._piece = Piece(0.0)
        self._done_s = 0.0
        self._looks = 0
        self._seen: tuple[object, ...] = ()

    @property
    def wait(self) -> tuple[PatienceRow, float]:
        """What a look at the waits finds now, and when that ends by itself."""
        return self._piece.row, self._piece.seconds - self._done_s

    @property
    def piece(self) -> Piece:
        """What is going on now."""
        return self._piece

    def __iter__(self) -> Iterator[Sample]:
        random = self.job.random
        while True:
            passed_s = self._poll_s + random.random() * JITTER_S
            if not self._pass(passed_s):
                return
            self.at += passed_s
            yield self._look()

    def _pass(self, seconds: float) -> bool:
        """The world goes on; False at its end."""
        while seconds > 0:
            piece = self._piece
            left_s = piece.seconds - self._done_s
            if piece.suspended and left_s > 0:
                self.suspended_s += left_s
                left_s = 0.0
            if left_s <= 1e-9:
                following = next(self._pieces, None)
                if following is None:
                    return False
                self._begin(following)
                continue
            part_s = min(left_s, seconds)
            before, after = self._done_s / piece.seconds, (self._done_s + part_s) / piece.seconds
            self._done_s += part_s
            seconds -= part_s
            self._cpu_s += part_s * piece.cpu
            self._in_line_s += part_s * piece.in_line
            self._io += part_s * piece.io
            self._tcp += part_s * piece.tcp
            self._log += part_s * piece.log
            self._births += part_s * piece.births
            if piece.steps:
                self._steps += _reached(piece.steps, after) - _reached(piece.steps, before)
            if piece.batches:
                self._batches += _reached(piece.batches, after) - _reached(piece.batches, before)
        return True

    def _begin(self, piece: Piece) -> None:
        old = self._piece
        self._piece, self._done_s = piece, 0.0
        if piece.suspended or not self.job.hooks:
            return
        for number, slot in enumerate(self._slots):
            phase = piece.phase if number == 0 or not piece.waiting else slot.phase
            if phase != slot.phase or (piece.entered and old is not piece):
                self._slots[number] = msgspec.structs.replace(
                    slot,
                    phase=phase,
                    phase_entries=slot.phase_entries + 1,
                    saves_ended=slot.saves_ended + (slot.phase == "checkpoint"),
                )

    def _look(self) -> Sample:
        piece = self._piece
        state = piece.states[self._looks % len(piece.states)]
        self._looks += 1
        seen = (self._steps, self._batches, state, *(slot.phase for slot in self._slots))
        if seen != self._seen:
            if self._seen and seen[:2] != self._seen[:2]:
                self.progressed_at.append(self.at)
            self._seen = seen
            self._members = (*self._ranks(), _member(900, "other", 0, state, None))
        births = int(self._births)
        return Sample(
            at=self.at,
            members=self._members,
            cpu_s=round(self._cpu_s, 2),  # the clock ticks of /proc
            io_bytes=int(self._io),
            tcp_bytes=int(self._tcp),
            log_bytes=100 * int(self._log / 100),
            births=births,
            deaths=births,
            suspended_s=self.suspended_s,
            cpu_wait_s=self._in_line_s,
        )

    def _ranks(self) -> Iterator[MemberSample]:
        for number, slot in enumerate(self._slots):
            if not self.job.hooks:
                yield _member(1000 + number, "other", number, "S", None)
                continue
            if number == 0 or not self._piece.waiting:
                self._slots[number] = msgspec.structs.replace(
                    slot,
                    progress=(0, self._steps, 0, 0, self._batches, 0, 0, 0),
                    step=self._steps or None,
                )
            yield _member(1000 + number, "rank", number, "S", self._slots[number])


def _reached(count: int, share: float) -> int:
    return int(count * share + 1e-9)


def _member(pid: int, role: str, rank: int, state: str, slot: SlotReading | None) -> MemberSample:
    who = Member(pid=pid, start=1, role=role, rank=rank)  # type: ignore[arg-type]
    return MemberSample(member=who, state=state, cpu_s=None, slot=slot)


def _slot(pid: int, rank: int, world_size: int) -> SlotReading:
    return SlotReading(
        pid=pid, start=1, role="rank", rank=rank, local_rank=rank, world_size=world_size, attempt=1,
        phase="startup", phase_entries=1,
    )  # fmt: skip
