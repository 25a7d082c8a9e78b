"""Healthy trainings on GPUs at low power, poll by poll: small kernels, or data that comes late."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import simulated_training as world

from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.model import EvidenceResult, Patience, Sample
from watchdog_train.core.model.gpu import DeviceLook, GpuStill, GpuUse
from watchdog_train.core.policy import Policy
from watchdog_train.core.replay import Replay, unseen

SAME_STACK = 0.7
"""How often a stack sample of a loop finds the same call, frames and variables as the one before:
much more often than any loop that was seen."""
PYTHON_CPU = 0.5
"""Of a core: a pause without GPU work that uses more computes in Python."""


class Devices:
    """What the GPUs of one training show."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._power = random.uniform(0.1, 0.24)
        self._full = random.random() < 0.5
        """Small kernels without a pause; else the GPU waits for data most of the time."""
        self.stack = 0
        self._in_call = True
        """The ranks may be in a call of CUDA; a piece of Python work is in none."""

    def use(self, piece: world.Piece) -> GpuUse:
        """At one poll of a piece."""
        random = self._random
        works = piece.phase in ("train", "eval", "first_step") and (piece.steps or piece.batches)
        self._in_call = bool(works) or piece.cpu < PYTHON_CPU
        power = self._power * random.uniform(0.9, 1.1) if works else 0.1
        runs = bool(works) and (self._full or random.random() < 0.1)
        util = 100.0 if runs else float(random.randint(1, 60)) if works and power > 0.15 else 0.0
        still = None if 0 < util < 98 else GpuStill(runs=runs, power=power if runs else 0.0)
        return GpuUse(device=0, util=util, power=power, draw=power, still=still)

    def look(self, found: Verdict) -> EvidenceResult:
        """A stack sample: sometimes the same as before."""
        self.stack += self._random.random() > SAME_STACK
        result = unseen(Patience(limit_s=75.0))
        told = (
            DeviceLook(stands=str(self.stack))
            if found.device is not None and self._in_call
            else None
        )
        return msgspec.structs.replace(result, device=told)


def alarms(seed: int, hours: float) -> list[str]:
    """False alarms by device wait in one training of any kind that keeps a core busy."""
    random = Random(f"gpus {seed}")
    job = world.draw_job(random, gpu_quiet=False, cpu=random.uniform(0.5, 1.0), hooks=True)
    devices = Devices(random)
    polls = world.Polls(job, [*world.start_up(job), *world.train(job, hours * 3600)])
    replay = Replay(Policy(), devices.look)
    for sample in _seen(polls, devices):
        replay.judge(sample)
    found = [one for one in replay.findings if one.kind == "stall" and one.basis == "device-wait"]
    return [f"training {seed}: {one.t:.0f} s in {one.phase}" for one in found]


def _seen(polls: world.Polls, devices: Devices) -> Iterator[Sample]:
    for sample in polls:
        yield msgspec.structs.replace(sample, gpu=devices.use(polls.piece))
