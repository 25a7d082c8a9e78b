"""Kills real saves at random moments, for scripts/bench/checkpoints.

The library is loaded once; every save runs in a fork, which is killed by SIGKILL between nothing
and a little more than the time that such a save takes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from checkpoint_makers import LENGTH, Maker

from watchdog_train.checkpoints.survey import SurveyRequest, survey

LARGE = 262_144
"""Numbers in each of 16 tensors: 16 MiB for the weights alone."""


@dataclass
class Kills:
    """What came of them."""

    total: int = 0
    torn: int = 0
    """The newest could not be loaded, or was a mixture of two saves."""
    wrong: int = 0
    """Chosen although it could not be loaded: has to be 0."""
    passed_over: int = 0
    """Whole, and an older one was chosen: work lost, no harm."""


def kill_saves(maker: Maker, root: Path, kills: int, seed: int) -> Kills:
    """A new directory for each kill, with step 10 saved in it; step 20 is killed."""
    assert maker.read is not None
    chance = random.Random(f"{seed} {maker.name}")
    before, LENGTH[0] = LENGTH[0], LARGE
    done = Kills()
    torch.set_num_threads(1)
    try:
        place = root / "place"
        took_s = _time_of_a_save(maker, place)
        for _ in range(kills):
            shutil.rmtree(place)
            place.mkdir()
            maker.save(place, 10)
            _killed(maker, place, chance.uniform(0, 1.1 * took_s))
            _judge(maker, place, done)
    finally:
        LENGTH[0] = before
    return done


def _time_of_a_save(maker: Maker, place: Path) -> float:
    place.mkdir(parents=True)
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        maker.save(place, 10)
        took.append(time.perf_counter() - begin)
    return min(took)


def _killed(maker: Maker, place: Path, after_s: float) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(told, b"x")
            maker.save(place, 20)
        finally:
            os._exit(0)
    os.close(told)
    os.read(ready, 1)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)


def _judge(maker: Maker, place: Path, done: Kills) -> None:
    done.total += 1
    found = survey(SurveyRequest(directories=(str(place),), check="all", settle_s=0.0)).findings
    chosen = next((item for item in found if item.whole), None)
    chosen = chosen or next((item for item in found if item.whole is None), None)
    numbers = [_content(maker, Path(item.path)) for item in found]
    good = [one for one in numbers if one is not None]
    done.torn += bool(numbers) and numbers[0] is None
    if chosen is None:
        done.wrong += bool(good)
        return
    content = _content(maker, Path(chosen.path))
    done.wrong += content is None
    done.passed_over += content is not None and bool(good) and content < max(good)


def _content(maker: Maker, path: Path) -> float | None:
    """The step of a checkpoint that can be loaded and is of one save."""
    assert maker.read is not None
    try:
        numbers = maker.read(path)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever a library says to a torn file; DCP's is no Exception
        return None
    return numbers.pop() if len(numbers) == 1 else None
