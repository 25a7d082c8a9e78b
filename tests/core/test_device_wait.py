"""Ranks that only wait for their GPUs: a stall when every sample says so, and never otherwise.

Each case is a training of one-second steps under a fake clock that stands still from 200 s on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import StartEvidence
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.detection.gpu import job_use
from watchdog_train.core.model import EvidenceResult, Patience, PatienceRow, Phase, Sample
from watchdog_train.core.model import gpu as g
from watchdog_train.core.policy import Detection, Policy
from watchdog_train.core.policy.limits import DeviceWaits
from watchdog_train.core.replay import Replay, unseen
from watchdog_train.core.suspect import watch
from watchdog_train.report.why_text import why_text

replace = msgspec.structs.replace
LIMITS = DeviceWaits()
HANGS_AT = 200.0
WORKS = g.GpuUse(util=80.0, power=0.6, draw=0.6)
SPINS = g.GpuUse(util=100.0, power=0.18, draw=0.18, still=g.GpuStill(runs=True, power=0.18))
IDLE = g.GpuUse(util=0.0, power=0.1, draw=0.1, still=g.GpuStill())
USERS = Policy(detection=Detection(stall_timeout_s=400))


def lacking(*lacks: Any, **changes: Any) -> g.GpuUse:
    assert SPINS.still is not None
    return replace(SPINS, still=replace(SPINS.still, lacks=lacks, **changes))


@dataclass
class Job:
    """What is seen of one training; the default is a wait that spins behind a kernel."""

    gpu: Any = SPINS
    """As it stands still; or by the seconds since then."""
    own: g.GpuUse = WORKS
    cpu: float = 1.0
    io: float = 0.0
    tcp: float = 0.0
    burst_s: float = float("inf")
    """When a megabyte came over the network, seconds after the last progress."""
    others_cpu: float = 0.0
    stands: Callable[[float], str] = lambda _: "same"
    waits: bool = True
    row: PatienceRow = "unknown"
    row_s: float | None = 75.0
    phase: Phase = "train"
    steps: int = 200
    step_s: float = 1.0
    world: int = 1
    before: tuple[tuple[Phase, float], ...] = ()
    """Phases that went well before the last steps."""
    minutes: float = 20.0
    policy: Policy = field(default_factory=Policy)
    wakes: float = float("inf")
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = 0.0
        self.hangs_at = self.steps * self.step_s
        self.replay = Replay(self.policy, self._look)

    def _look(self, found: Verdict) -> EvidenceResult:
        at = self.now
        result = unseen(Patience(row=self.row, limit_s=self.row_s))
        if found.device is None or found.age_s < LIMITS.first_sample_s:
            return result
        self.looks.append(at)
        device = g.DeviceLook(
            stands=self.stands(at), waits=self.waits, others_cpu_s=self.others_cpu * at
        )
        return replace(result, device=device)

    def run(self) -> Job:
        self.silent_from = self.hangs_at + sum(seconds + 10 for _, seconds in self.before)
        while self.now < self.silent_from + 60 * self.minutes:
            self.now += 1.0
            self.replay.judge(self.sample(self.now))
        return self

    def sample(self, at: float) -> Sample:
        working = at <= self.silent_from
        inside: Phase | None = None
        begins, waited_s = self.hangs_at, 0.0
        for name, seconds in self.before:
            inside = name if begins < at <= begins + seconds else inside
            waited_s += min(max(0.0, at - begins), seconds)
            begins += seconds + 10
        stepping_s = min(at, self.silent_from) - waited_s
        words = min(int(stepping_s / self.step_s), self.steps + 10 * len(self.before))
        words += int(max(0.0, at - self.wakes))
        phase = inside or ("train" if working else self.phase)
        member = b.rank(words=words, phase=phase, world_size=self.world)
        gpu = self.gpu(at - self.silent_from) if callable(self.gpu) else self.gpu
        quiet_s = max(0.0, at - self.silent_from)
        return b.sample(
            at,
            member,
            cpu_s=min(at, self.silent_from) + self.cpu * quiet_s,
            io_bytes=int(self.io * quiet_s),
            tcp_bytes=int(self.tcp * quiet_s) + (1_000_000 if quiet_s > self.burst_s else 0),
            gpu=self.own if working else gpu,
        )

    @property
    def stall(self) -> tuple[str, float] | None:
        """Basis, and seconds after the last progress."""
        found = next((one for one in self.replay.findings if one.kind == "stall"), None)
        return None if found is None else (found.basis, found.t - self.silent_from)


STALLS: dict[str, tuple[dict[str, Any], float]] = {
    "a wait that spins or yields": ({}, 300),
    "a wait that blocks, behind a kernel": ({"cpu": 0.0}, 300),
    "a wait that spins beside an idle GPU": ({"gpu": IDLE}, 300),
    "the last kernels of the step before": (
        {"gpu": lambda silent: WORKS if silent < 8 else SPINS}, 300,
    ),
    "steps of 60 s": ({"step_s": 60.0, "steps": 20}, 600),
    "an evaluation": ({"phase": "eval", "minutes": 90.0}, 3600),
    "a save": ({"phase": "checkpoint", "minutes": 90.0}, 3600),
    "an evaluation after one of 25 minutes": (
        {"phase": "eval", "before": (("eval", 1500.0),), "minutes": 90.0}, 4500,
    ),
    "before the third step": ({"steps": 2, "gpu": IDLE, "minutes": 90.0}, 3600),
    "a rank elsewhere, in a wait that has 10 minutes": ({"row": "network", "row_s": 600.0}, 600),
    "one stack sample that could not be read": (
        {"stands": lambda at: "" if 300 < at < 350 else "same"}, 350,
    ),
    "its GPU is unknown, the user has set a limit": (
        {"gpu": lacking("power"), "policy": USERS}, 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STALLS)
def test_a_wait_for_a_gpu_is_a_stall_at_its_limit(name: str) -> None:
    """Not before the limit, at most one stack sample later."""
    changes, limit_s = STALLS[name]
    found = Job(**changes).run().stall
    assert found is not None
    basis, seconds = found
    assert basis == ("user-limit" if "user" in name else "device-wait")
    assert limit_s <= seconds <= limit_s + LIMITS.every_s + 5


NEVER: dict[str, dict[str, Any]] = {
    "a core is busy beside a working GPU": {"gpu": WORKS},
    "it works now and then": {"gpu": lambda silent: WORKS if silent % 100 < 3 else SPINS},
    "it worked once in the silence": {"gpu": lambda silent: WORKS if 60 < silent < 63 else SPINS},
    "power of a kernel that works": {"gpu": replace(SPINS, still=g.GpuStill(runs=True, power=0.3))},
    "power as in its own steps": {"own": replace(WORKS, draw=0.2)},
    "power unknown": {"gpu": lacking("power", power=None)},
    "power of its own steps unknown": {"own": replace(WORKS, draw=None)},
    "the GPU is unknown for a moment": {"gpu": lambda silent: None if 90 < silent < 93 else SPINS},
    "held down by heat": {"gpu": lacking("full-clocks")},
    "a second process on the device": {"gpu": lacking("GPUs-of-its-own")},
    "MIG": {"gpu": lacking("whole-GPUs")},
    "PCIe unknown": {"gpu": lacking("PCIe-counters")},
    "bytes over PCIe": {"gpu": lacking(bytes_s=1e8)},
    "slow all-reduce over Ethernet": {"tcp": 1e5},
    "bytes came over the network once": {"burst_s": 30.0},
    "reads from a disk": {"io": 1e6},
    "a second thread computes": {"cpu": 1.5},
    "a thread computes while the waiting one yields": {"cpu": 0.9, "others_cpu": 0.4},
    "a rank that is not visible": {"world": 2},
    "no step is known": {"steps": 0, "gpu": IDLE, "minutes": 90.0},
    "native stacks are refused": {"stands": lambda _: ""},
    "loop with .item() in every sample": {"stands": str},
    "native stacks come late": {"stands": lambda at: "same" if at > 450 else ""},
    "it moves once": {"stands": lambda at: str(at < 400)},
    "it loads a module, or compiles": {"waits": False},
    "a rank elsewhere waits for somebody to type": {"row": "input", "row_s": None},
    "generation": {"phase": "eval", "stands": str, "minutes": 90.0},
    "a compilation": {"phase": "compile", "waits": False, "minutes": 90.0},
    "a long kernel at low power within its own longest step": {
        "step_s": 120.0, "steps": 5, "minutes": 19.0,
    },
    "a wait that blocks, its power unknown": {"cpu": 0.0, "gpu": lacking("power", power=None)},
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_what_may_be_healthy_is_never_a_stall(name: str) -> None:
    job = Job(**NEVER[name]).run()
    assert job.stall is None


def test_what_waits_without_cpu_beside_an_idle_gpu_keeps_its_limit() -> None:
    """As without a GPU: 75 s where nobody knows what it waits for."""
    found = Job(cpu=0.0, gpu=IDLE).run().stall
    assert found[0] == "quiet"
    assert found[1] < 90


@pytest.mark.parametrize("name", ["a wait that spins or yields", "an evaluation"])
def test_native_stacks_are_taken_once_a_minute_of_a_silent_job(name: str) -> None:
    """The first one 50 s after the last progress; none once the ranks make steps again."""
    changes = {**STALLS[name][0], "minutes": 15.0, "wakes": HANGS_AT + 200}
    looks = Job(**changes).run().looks
    assert looks[0] >= HANGS_AT + 50
    assert all(after - look >= LIMITS.every_s for look, after in pairwise(looks))
    assert looks[-1] <= HANGS_AT + 201
    moving = Job(stands=str, minutes=60.0).run().looks
    assert len(moving) == 2, "a sample that differs is the last one"


def test_what_is_missing_is_named() -> None:
    job = Job(gpu=lacking("power", power=None)).run()
    sample = job.sample(job.now + 1)
    found = job.replay.judge(sample)
    suspected = e.Suspected(
        basis=found.basis, phase=found.phase, ranks=(0,), age_s=found.age_s, why=found.why
    )
    action = watch(b.observation(sample, found), b.running(suspected), Policy())
    assert isinstance(action, StartEvidence)
    said = why_text(action.verdict.why)
    assert said.endswith("; to call it a stall, wtrain lacks: power")


def device(index: int, pid: int, util: float = 100.0, watts: float = 126.0) -> g.GpuDevice:
    return g.GpuDevice(
        index=index,
        util=util,
        power_w=watts,
        power_limit_w=700.0,
        pcie_bytes_s=1e5,
        processes=(g.GpuProcess(pid=pid),),
    )


def still(*devices: g.GpuDevice, foreign: bool = False, ranks: int = 1) -> g.GpuStill | None:
    reading = g.GpuReading(devices=devices, rdma_bytes_s=0.0, foreign_pids=foreign)
    use = job_use(reading, {1, 2}, ranks=ranks)
    return use.still


def test_all_devices_of_a_job_have_to_wait() -> None:
    """One GPU of two that works is work; of a stranger's none is known."""
    assert still(device(0, 1), device(1, 2, util=40.0)) is None
    both = g.GpuReading(devices=(device(0, 1), device(1, 2, util=0.0, watts=70.0)))
    use = job_use(msgspec.structs.replace(both, rdma_bytes_s=0.0), {1, 2}, ranks=1)
    assert use.still == g.GpuStill(runs=True, power=0.18, bytes_s=1e5)
    assert use.draw == pytest.approx(0.14)
    assert still(device(0, 1), device(1, 2, watts=600.0)).power == pytest.approx(0.857)
    crowd = replace(device(0, 1), processes=(g.GpuProcess(pid=1), g.GpuProcess(pid=9)))
    assert still(crowd, device(1, 2)).lacks == ("GPUs-of-its-own",)


def test_in_a_container_more_processes_than_ranks_are_somebody_elses() -> None:
    """The driver's pids are those of the machine."""
    busy = [replace(device(n, 70 + n), memory_used_bytes=8 << 30) for n in range(2)]
    lacks = [still(*busy, foreign=True, ranks=ranks).lacks for ranks in (2, 1)]
    assert lacks == [(), ("GPUs-of-its-own",)]


@pytest.mark.parametrize(
    ("changes", "lack"),
    [
        ({"util": None}, "utilisation"),
        ({"power_w": None}, "power"),
        ({"slowed_by": ("heat",)}, "full-clocks"),
        ({"mig": True}, "whole-GPUs"),
        ({"pcie_bytes_s": None}, "PCIe-counters"),
    ],
)
def test_a_device_that_does_not_tell(changes: dict[str, Any], lack: str) -> None:
    assert lack in still(replace(device(0, 1), **changes)).lacks
