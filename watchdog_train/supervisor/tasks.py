"""Slow work as child processes with deadlines: looks, evidence, checkpoint surveys.

Each task is a module of ours run with a request file; it answers with a file. A task that dies,
hangs or writes nonsense still gives an answer that says so: the loop never waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from watchdog_train.commands.order import EXTRA_S as COMMAND_EXTRA_S
from watchdog_train.commands.order import Order as CommandOrder
from watchdog_train.commands.order import failed, read_answer
from watchdog_train.core.actions import TaskName
from watchdog_train.core.events import CommandResult
from watchdog_train.core.model import EvidenceResult, JointAnswer, KeepAnswer, SaveRecord, Survey
from watchdog_train.evidence.request import (
    EvidenceRequest,
    JointRequest,
    forget_answers,
    read_partial,
    read_result,
    write_request,
)
from watchdog_train.supervisor.children import ChildTable, FinishedChild
from watchdog_train.system.protocol import PASSING
from watchdog_train.trusted_files import make_folder, remove
from watchdog_train.whole_files import read_json, replace_json

if TYPE_CHECKING:
    from watchdog_train.checkpoints.keep import KeepRequest
    from watchdog_train.checkpoints.survey import SurveyRequest

ANSWER_CAP_BYTES = 16 * 1024 * 1024
SALVAGE_S = 5.0
"""For reading stacks that lie on a local disk, and writing them where they belong."""
EXTRA_S = 10.0
"""For starting Python and closing the bundle, on top of the task's own deadline."""
_read = partial(read_json, cap_bytes=ANSWER_CAP_BYTES)


@dataclass(frozen=True, slots=True)
class _Running:
    child: str
    finish: Callable[[FinishedChild], None]


class Tasks:
    """The tasks of one supervisor; at most one of each name at a time."""

    def __init__(self, children: ChildTable) -> None:
        self._children = children
        self._running: dict[TaskName, _Running] = {}
        self.look: EvidenceResult | None = None
        self.evidence: EvidenceResult | None = None
        self.survey: Survey | None = None
        self.joint: JointAnswer | None = None
        self.kept: KeepAnswer | None = None
        self.commands: tuple[CommandResult, ...] | None = None

    @property
    def running(self) -> frozenset[TaskName]:
        """Names of the tasks that have not answered yet."""
        return frozenset(self._running)

    def collect(self, request: EvidenceRequest) -> None:
        """Start a look or a full collection."""
        name: TaskName = "look" if request.mode == "look" else "evidence"
        path = Path(request.staging_dir) / f"{name}-request.json"

        def answer(result: EvidenceResult) -> None:
            if request.mode == "look":
                self.look = result
            else:
                self.evidence = result

        def finish(ended: FinishedChild) -> None:
            problem = _problem(ended) or "the collector left no answer"
            result, draft = read_result(request), read_partial(request)
            if result is None and draft is not None and request.mode == "full":
                self._salvage(request, path, problem, answer)
                return
            answer(result or draft or _no_evidence(request, problem, ended.seconds))

        self.discard(name)
        try:
            make_folder(path.parent)
            forget_answers(request)
            write_request(request, path)
            self._start(name, "watchdog_train.evidence.collect", path, request.deadline_s, finish)
        except OSError as error:
            answer(_no_evidence(request, f"the collector could not be started: {error}", 0.0))

    def _salvage(
        self,
        request: EvidenceRequest,
        path: Path,
        problem: str,
        answer: Callable[[EvidenceResult], None],
    ) -> None:
        """Make a bundle of what a killed collector had; without one its draft is the answer."""

        def finish(ended: FinishedChild) -> None:
            result = read_result(request) or read_partial(request)
            answer(result or _no_evidence(request, problem, ended.seconds))

        try:
            self._start("evidence", "watchdog_train.evidence.salvage", path, SALVAGE_S, finish)
        except OSError as error:
            words = f"{problem}; nor could a bundle be made of what it had: {error}"
            answer(read_partial(request) or _no_evidence(request, words, 0.0))

    def scan_checkpoints(
        self, request: SurveyRequest, path: Path, *, keep: Path, deadline_s: float
    ) -> None:
        """Start a scan of the checkpoints.

        Request and answer lie beside `path`, in memory: on a full disk there would be no answer,
        and the next attempt would begin from its start. `keep` gets a copy where there is room.

        Raises:
            OSError: it cannot be started now, and may be later (PASSING).
        """
        answer = path.with_name("survey.json")

        def finish(ended: FinishedChild) -> None:
            problem = _problem(ended, "it") or "it left no answer that can be read"
            self.survey = _read(answer, Survey) or _no_survey(problem)
            with suppress(OSError):
                replace_json(keep, self.survey)

        self.discard("survey")
        try:
            make_folder(path.parent)
            remove(answer)
            request = msgspec.structs.replace(request, out=str(answer))
            replace_json(path, request)
            self._start("survey", "watchdog_train.checkpoints.survey", path, deadline_s, finish)
        except OSError as error:
            if error.errno in PASSING:
                raise
            self.survey = _no_survey(f"it could not be started: {error}")

    def diagnose_together(self, request: JointRequest, path: Path, *, deadline_s: float) -> None:
        """Start the diagnosis of several bundles as one."""
        answer = Path(request.out)

        def finish(ended: FinishedChild) -> None:
            problem = _problem(ended) or "it left no answer"
            self.joint = _read(answer, JointAnswer) or JointAnswer(diagnosis=None, problem=problem)

        self.discard("joint")
        try:
            remove(answer)
            replace_json(path, request)
            self._start("joint", "watchdog_train.evidence.joint", path, deadline_s, finish)
        except OSError as error:
            self.joint = JointAnswer(diagnosis=None, problem=f"it could not be started: {error}")

    def keep_copy(self, request: KeepRequest, path: Path, *, deadline_s: float) -> None:
        """Start copying a checkpoint file."""
        answer = Path(request.out)
        save = request.save

        def finish(ended: FinishedChild) -> None:
            problem = _problem(ended) or "it left no answer"
            self.kept = _read(answer, KeepAnswer) or _not_kept(save, problem)

        self.discard("keep")
        try:
            remove(answer)
            replace_json(path, request)
            self._start("keep", "watchdog_train.checkpoints.keep", path, deadline_s, finish)
        except OSError as error:
            self.kept = _not_kept(save, f"it could not be started: {error}")

    def run_commands(self, order: CommandOrder, path: Path, env: Mapping[str, str]) -> None:
        """Start the user's commands that a restart waits for."""

        def finish(ended: FinishedChild) -> None:
            problem = _problem(ended) or "the process that runs it left no answer"
            self.commands = read_answer(order, problem)

        self.discard("commands")
        try:
            make_folder(path.parent)
            replace_json(path, order)
            limit_s = order.within_s - COMMAND_EXTRA_S
            self._start("commands", "watchdog_train.commands.run", path, limit_s, finish, env=env)
        except OSError as error:
            self.commands = failed(order, f"it could not be started: {error.strerror}")

    def discard(self, name: TaskName) -> None:
        """Forget a result that has been used."""
        match name:
            case "look":
                self.look = None
            case "evidence":
                self.evidence = None
            case "survey":
                self.survey = None
            case "joint":
                self.joint = None
            case "keep":
                self.kept = None
            case "commands":
                self.commands = None

    def finished(self, ended: FinishedChild) -> None:
        """Take the answer of a child that has ended, if it was one of ours."""
        for name, running in list(self._running.items()):
            if running.child == ended.name:
                del self._running[name]
                running.finish(ended)

    def _start(
        self,
        name: TaskName,
        module: str,
        request: Path,
        deadline_s: float,
        finish: Callable[[FinishedChild], None],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        # The training's directory must not be on the path: it may hold a file named like a
        # module of ours or of the standard library. -I does that on every Python.
        argv = [sys.executable, "-I", "-m", module, str(request)]
        limit_s = deadline_s + EXTRA_S
        self._children.spawn(argv, name=f"task-{name}", deadline_s=limit_s, env=env)
        self._running[name] = _Running(child=f"task-{name}", finish=finish)


def _no_evidence(request: EvidenceRequest, problem: str, seconds: float) -> EvidenceResult:
    return EvidenceResult(
        stall_id=request.stall_id,
        dir=request.out_dir,
        processes=(),
        diagnosis=None,
        patience="unknown",
        fingerprint=None,
        seconds=seconds,
        problem=problem,
    )


def _not_kept(save: SaveRecord, problem: str) -> KeepAnswer:
    return KeepAnswer(
        path=save.path, copy="", format=save.format, step=save.step, saved_at=0.0, problem=problem
    )


def _no_survey(problem: str) -> Survey:
    return Survey(findings=(), directories=(), problem=problem, failed=True)


def _problem(ended: FinishedChild, who: str = "") -> str | None:
    who = who or ended.name
    if ended.timed_out:
        return f"{who} did not end within {ended.seconds:.0f} s and was killed"
    if ended.signal is not None:
        return f"{who} was killed by signal {ended.signal}"
    if ended.code:
        return f"{who} failed with exit code {ended.code}"
    return None
