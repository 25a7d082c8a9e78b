"""Evidence of duplicates, taken by `wtrain dump` before --duplicates kill ends them.

Every wait is bounded. What cannot be dumped is told, and is ended all the same: that is what the
user has asked for.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.model import ProcessId
from watchdog_train.store.registry import LiveRun
from watchdog_train.supervisor.helper import module
from watchdog_train.supervisor.lookalikes import LookAlike

ENDING_WORDS = (
    "wtrain: the same training runs already: its stacks are taken, then it is ended "
    "(--duplicates kill)"
)
AT_ONCE = 4
"""Collections beside each other; one is a Python and a py-spy that are busy for a second or two."""
BEGIN_WITHIN_S = 60.0
"""A bad night's copies are many: who has had no turn by then is ended without a dump."""
EXTRA_S = 30.0
"""To start Python and to close the bundle, beyond the limit of the evidence."""


class _Order(msgspec.Struct, frozen=True):
    who: ProcessId
    run_id: str | None
    words: tuple[str, ...]
    """For `wtrain dump`."""


class _Answer(msgspec.Struct):
    dir: str
    captured: int
    processes: list[object]
    problem: str | None


def dump_runs(runs: Iterable[LiveRun], total_s: float) -> Iterator[e.DuplicateDumped]:
    """A bundle of each run, among its own, in at most `total_s`; yields what came of each."""
    orders = (_Order(ProcessId(run.pid, run.start), run.run_id, (run.run_dir,)) for run in runs)
    return _dump(orders, total_s)


def dump_lookalikes(
    found: Iterable[LookAlike], folder: Path, total_s: float
) -> Iterator[e.DuplicateDumped]:
    """A bundle below `folder` of each that will be ended; yields what came of each."""
    place = ("--runs-dir", str(folder.absolute()))
    orders = (
        _Order(one.process, one.run_id, ("--pid", str(one.process.pid), *place))
        for one in found
        if one.same_user
    )
    return _dump(orders, total_s)


def _dump(orders: Iterable[_Order], total_s: float) -> Iterator[e.DuplicateDumped]:
    begin_by = time.monotonic() + max(BEGIN_WITHIN_S, total_s)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda order: _one(order, total_s + EXTRA_S, begin_by), orders)


def _one(order: _Order, limit_s: float, begin_by: float) -> e.DuplicateDumped:
    problem = "there was no time left for it"
    if time.monotonic() < begin_by:
        argv = module("watchdog_train", "dump", "--json", *order.words)
        try:
            done = subprocess.run(argv, capture_output=True, check=False, timeout=limit_s)
            answer = msgspec.json.decode(done.stdout, type=_Answer)
            return _told(order, answer)
        except msgspec.DecodeError:
            problem = done.stderr.decode("utf-8", "replace").strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    return _told(order, _Answer("", 0, [], problem[:500]))


def _told(order: _Order, answer: _Answer) -> e.DuplicateDumped:
    return e.DuplicateDumped(
        pid=order.who.pid,
        start=order.who.start,
        run_id=order.run_id,
        dir=answer.dir if answer.processes else None,
        processes=len(answer.processes),
        captured=answer.captured,
        problem=answer.problem,
    )
