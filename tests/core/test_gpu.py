"""What GPUs say about a job: life where something is computed, nothing where nobody can tell."""

from __future__ import annotations

import pytest

from tests.core import builders as b
from tests.core.test_detect import judge
from watchdog_train.core.detection.gpu import job_use
from watchdog_train.core.model import Sample
from watchdog_train.core.model.gpu import GpuDevice, GpuProcess, GpuReading, GpuStill, GpuUse

WORKS = GpuUse(util=57.0, power=0.6)
HARD = GpuUse(util=100.0, power=0.9)
SPINS = GpuUse(util=100.0, power=0.2, still=GpuStill(runs=True, power=0.2))
IDLE = GpuUse(util=0.0, power=0.1)
FULL_POWER_UNKNOWN = GpuUse(util=100.0)


def device(index: int, *pids: int, util: float | None = 50.0, **changes: object) -> GpuDevice:
    given = {"power_w": 200.0, "power_limit_w": 400.0, **changes}
    processes = tuple(GpuProcess(pid=pid) for pid in pids)
    return GpuDevice(index=index, util=util, processes=processes, **given)  # type: ignore[arg-type]


def shown(use: GpuUse | None) -> tuple[object, ...] | None:
    """Device, utilisation and power."""
    return None if use is None else (use.device, use.util, use.power)


def test_only_the_jobs_own_devices_count() -> None:
    """A stranger's GPU at work is no sign of life of ours."""
    reading = GpuReading(devices=(device(0, 1, util=0.0), device(1, 99, util=80.0)))
    assert shown(job_use(reading, {1, 2})) == (0, 0.0, 0.5)
    assert job_use(reading, {7}) is None


def test_a_shared_device_says_nothing_of_us() -> None:
    """Who else computes there is named; whose the utilisation is, nobody can tell."""
    reading = GpuReading(devices=(device(0, 1, 99, util=80.0),))
    use = job_use(reading, {1})
    assert (use.util, use.others) == (None, (99,))
    both = GpuReading(devices=(device(0, 1, 99), device(1, 1, util=30.0)))
    use = job_use(both, {1})
    assert (use.util, use.others) == (30.0, (99,))


def test_a_rank_has_devices_of_its_own() -> None:
    """Other ranks of the job on them are no strangers; in a container nobody can tell whose."""
    reading = GpuReading(devices=(device(0, 1, 2, util=40.0), device(1, 2, util=90.0)))
    assert shown(job_use(reading, {1, 2}, 1)) == (0, 40.0, 0.5)
    use = GpuDevice(index=0, util=9.0, memory_used_bytes=8 << 30)
    assert job_use(GpuReading(devices=(use,), foreign_pids=True), {1}, 1) is None


def test_in_a_container_the_devices_in_use_are_taken_for_ours() -> None:
    """The driver's pids are those of the machine, not ours."""
    reading = GpuReading(
        devices=(
            device(0, 31337, memory_used_bytes=1 << 20),
            device(1, 31338, util=20.0, memory_used_bytes=8 << 30),
        ),
        foreign_pids=True,
    )
    assert shown(job_use(reading, {1})) == (1, 20.0, 0.5)
    assert job_use(GpuReading(devices=(device(0),), foreign_pids=True), {1}) is None


def test_the_device_with_most_life_is_shown() -> None:
    """One rank spins for another that computes: the job works."""
    spinning = device(0, 1, util=100.0, power_w=80.0)
    reading = GpuReading(devices=(spinning, device(1, 2, util=40.0)))
    use = job_use(reading, {1, 2})
    assert use.works
    waiting = GpuReading(devices=(spinning, device(1, 2, util=0.0)))
    use = job_use(waiting, {1, 2})
    assert not use.works


def at(use: GpuUse | None, *, cpu: float, silent_from: float = 60.0) -> object:
    def poll(now: float) -> Sample:
        words = 1 + int(min(now, silent_from))
        return b.sample(now, b.rank(words=words), cpu_s=cpu * now, gpu=use)

    return poll


@pytest.mark.parametrize(
    ("use", "cpu", "seconds", "kind", "basis"),
    [
        (WORKS, 0.01, 60 + 110, "alive", None),
        (HARD, 0.01, 60 + 110, "alive", None),
        (None, 0.01, 60 + 20, "suspect", "quiet"),
        (IDLE, 0.01, 60 + 20, "suspect", "quiet"),
        (SPINS, 0.01, 60 + 20, "suspect", "quiet"),
        (FULL_POWER_UNKNOWN, 0.01, 60 + 20, "suspect", "quiet"),
        (SPINS, 1.0, 60 + 110, "alive", None),
        (SPINS, 1.0, 60 + 130, "suspect", "device-wait"),
        (WORKS, 1.0, 60 + 130, "suspect", "hard-budget"),
        (IDLE, 1.0, 60 + 130, "suspect", "hard-budget"),
        (None, 1.0, 60 + 130, "suspect", "hard-budget"),
        (FULL_POWER_UNKNOWN, 1.0, 60 + 130, "suspect", "hard-budget"),
    ],
)
def test_what_a_gpu_changes(
    use: GpuUse | None, cpu: float, seconds: float, kind: str, basis: str | None
) -> None:
    """A GPU at work is life; one that spins near idle power takes the CPU's word away."""
    found = judge(at(use, cpu=cpu), seconds)  # type: ignore[arg-type]
    assert found.kind == kind
    assert basis is None or found.basis == basis


def test_a_spinning_gpu_beside_io_or_with_unknown_power_is_no_stall() -> None:
    """Something else moves, or the power of its own steps is not known."""

    def writes(now: float) -> Sample:
        poll = at(SPINS, cpu=1.0)(now)  # type: ignore[operator]
        return b.sample(now, *poll.members, cpu_s=now, gpu=SPINS, io_bytes=200_000 * int(now))

    def evaluates(now: float) -> Sample:
        member = b.rank(words=1 + int(min(now, 60)), phase="train" if now <= 60 else "eval")
        return b.sample(now, member, cpu_s=now, gpu=SPINS)

    assert judge(writes, 60 + 130).basis == "hard-budget"
    found = judge(evaluates, 60 + 3700).device
    assert found.lacks == ("power-of-own-steps",)
