"""Evidence of duplicates, taken before --duplicates kill ends them.

Every wait is bounded. What cannot be dumped is told, and is ended all the same: that is what the
user has asked for.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.model import EvidenceResult, Member, ProcessId
from watchdog_train.core.policy import Evidence as EvidenceLimits
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.discover import living_members, slot_dir_of, tree_of
from watchdog_train.evidence.manual import claim_bundle
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.registry import LiveRun
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.lookalikes import LookAlike
from watchdog_train.supervisor.tasks import EXTRA_S, SALVAGE_S, Tasks
from watchdog_train.system.protocol import ProcessSystem

ENDING_WORDS = (
    "wtrain: the same training runs already: its stacks are taken, then it is ended "
    "(--duplicates kill)"
)
AT_ONCE = 4
"""Collections beside each other; one is a Python and a py-spy that are busy for a second or two."""
BEGIN_WITHIN_S = 60.0
"""A bad night's copies are many: who has had no turn by then is ended without a dump."""
_STUCK_S = 10.0
"""Over all limits of a collector together: then it is inside the kernel, and is left behind."""
_LOOK_S = 0.02
_DONE = ("then every process of it is ended: --duplicates kill",)


@dataclass(frozen=True, slots=True)
class _Order:
    """One duplicate to be dumped."""

    who: ProcessId
    run_id: str | None
    prepare: Callable[[], EvidenceRequest]
    """As late as possible: its tree may have changed. Raises WtrainError or OSError."""


def dump_runs(
    runs: Iterable[LiveRun], limits: EvidenceLimits, system: ProcessSystem
) -> Iterator[e.DuplicateDumped]:
    """A bundle of each run, among its own; yields what came of each."""

    def order(run: LiveRun) -> _Order:
        directory = run.directory
        return _Order(
            who=ProcessId(run.pid, run.start),
            run_id=run.run_id,
            prepare=lambda: _request_for_run(directory, limits, system),
        )

    return _dump([order(run) for run in runs], limits, system)


def dump_lookalikes(
    found: Iterable[LookAlike], stalls: Path, limits: EvidenceLimits, system: ProcessSystem
) -> Iterator[e.DuplicateDumped]:
    """A bundle in `stalls` of each that will be ended; yields what came of each."""

    def order(one: LookAlike) -> _Order:
        return _Order(
            who=one.process,
            run_id=one.run_id,
            prepare=lambda: _request_for_lookalike(one, stalls, limits, system),
        )

    return _dump([order(one) for one in found if one.same_user], limits, system)


def _request_for_run(
    directory: RunDirectory, limits: EvidenceLimits, system: ProcessSystem
) -> EvidenceRequest:
    log = read_events(directory.events, strict=False, spill_dir=directory.spill_dir)
    state = replay(log.events)
    number = state.attempt.attempt if state.attempt else 0
    return _request(
        living_members(state, system),
        directory.stalls,
        limits,
        why=f"a duplicate of the training that wtrain run (pid {os.getpid()}) starts",
        slot_dir=directory.slot_dir(),
        attempt_dir=directory.attempt(number) if number else None,
        attempt=number,
        command=state.argv,
    )


def _request_for_lookalike(
    one: LookAlike, stalls: Path, limits: EvidenceLimits, system: ProcessSystem
) -> EvidenceRequest:
    members = tree_of(system, one.process.pid, without=(os.getpid(),))
    if members and members[0].identity != one.process:
        members = ()
    return _request(
        members,
        stalls,
        limits,
        why=one.why,
        slot_dir=slot_dir_of(system, members),
        command=system.command_line(one.process.pid) or (),
    )


def _request(
    members: tuple[Member, ...],
    stalls: Path,
    limits: EvidenceLimits,
    *,
    why: str,
    slot_dir: Path | None,
    command: tuple[str, ...],
    attempt_dir: Path | None = None,
    attempt: int = 0,
) -> EvidenceRequest:
    if not members:
        raise WtrainError("no process of it is alive any more", reference="pid-unknown")
    folder = claim_bundle(stalls)
    return EvidenceRequest(
        mode="full",
        stall_id=folder.name,
        why="manual",
        out_dir=str(folder.absolute()),
        staging_dir=tempfile.mkdtemp(prefix="wtrain-dump-"),
        members=members,
        slot_dir=str(slot_dir) if slot_dir is not None else None,
        attempt_dir=str(attempt_dir) if attempt_dir is not None else None,
        verdict={"at": time.time(), "attempt": attempt, "why": why},
        command=command,
        log_tail_lines=limits.log_tail_lines,
        deadline_s=limits.total_s,
        process_s=limits.process_s,
        rules_dirs=tuple(map(os.path.abspath, limits.rules_dirs)),
        done=_DONE,
    )


class _Collection:
    """One collector that runs."""

    def __init__(self, order: _Order, system: ProcessSystem) -> None:
        self.order = order
        self.request = order.prepare()
        self._children = ChildTable(system)
        self._tasks = Tasks(self._children)
        self._tasks.collect(self.request)
        limit_s = self.request.deadline_s + EXTRA_S + SALVAGE_S + EXTRA_S + _STUCK_S
        self._until = time.monotonic() + limit_s

    def look(self) -> e.DuplicateDumped | None:
        """What came of it; None while it runs. Never blocks."""
        self._children.poll()
        self._tasks.poll()
        result = self._tasks.evidence
        if result is None and time.monotonic() < self._until:
            return None
        self.close(keep=result is not None and result.dir == self.request.staging_dir)
        if result is None:
            return _not_dumped(self.order, "its collector cannot be ended: inside the kernel")
        return _dumped(self.order, result)

    def close(self, *, keep: bool = False) -> None:
        """End it, and leave no folder but one with evidence in it."""
        self._children.end_all()
        if not keep:
            shutil.rmtree(self.request.staging_dir, ignore_errors=True)
        with suppress(OSError):  # only when nothing was written to it
            os.rmdir(self.request.out_dir)


def _dump(
    orders: Iterable[_Order], limits: EvidenceLimits, system: ProcessSystem
) -> Iterator[e.DuplicateDumped]:
    waiting = deque(orders)
    running: list[_Collection] = []
    begin_by = time.monotonic() + max(BEGIN_WITHIN_S, limits.total_s)
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                order = waiting.popleft()
                if time.monotonic() >= begin_by:
                    yield _not_dumped(order, "there was no time left for it")
                    continue
                try:
                    running.append(_Collection(order, system))
                except (WtrainError, OSError) as error:
                    yield _not_dumped(order, str(error))
            for one in tuple(running):
                told = one.look()
                if told is not None:
                    running.remove(one)
                    yield told
            if running:
                time.sleep(_LOOK_S)
    finally:  # Ctrl-C
        for one in running:
            one.close()


def _dumped(order: _Order, result: EvidenceResult) -> e.DuplicateDumped:
    return e.DuplicateDumped(
        pid=order.who.pid,
        start=order.who.start,
        run_id=order.run_id,
        dir=result.dir if result.processes else None,
        processes=len(result.processes),
        captured=result.captured,
        problem=result.problem,
    )


def _not_dumped(order: _Order, problem: str) -> e.DuplicateDumped:
    return e.DuplicateDumped(
        pid=order.who.pid,
        start=order.who.start,
        run_id=order.run_id,
        dir=None,
        processes=0,
        captured=0,
        problem=problem[:500],
    )
