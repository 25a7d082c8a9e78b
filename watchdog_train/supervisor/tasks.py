"""Slow work as child processes with deadlines: stack samples, evidence, scans of checkpoints.

Each task is a module of wtrain run with a request file; it answers with a file. A task that dies,
hangs or writes nonsense still gives an answer that says so: the loop never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from watchdog_train.commands import EXTRA_S as COMMAND_EXTRA_S
from watchdog_train.commands import Order as CommandOrder
from watchdog_train.commands import failed
from watchdog_train.core.actions import TaskName
from watchdog_train.core.events import CommandResult
from watchdog_train.core.model import (
    EvidenceResult,
    JointAnswer,
    KeepAnswer,
    RestoreAnswer,
    Survey,
    said,
)
from watchdog_train.evidence.request import (
    EvidenceRequest,
    forget_answers,
    read_partial,
    read_result,
    without_secrets,
)
from watchdog_train.supervisor.children import ChildTable, Helper, module
from watchdog_train.system.protocol import PASSING
from watchdog_train.whole_files import replace_json

if TYPE_CHECKING:
    from watchdog_train.checkpoints.survey import SurveyRequest

EXTRA_S = 10.0
"""For starting Python and closing the bundle, on top of the task's own deadline."""
MODULES: dict[TaskName, str] = {
    "look": "evidence.collect",
    "evidence": "evidence.collect",
    "survey": "checkpoints.survey",
    "joint": "evidence.joint",
    "keep": "checkpoints.copies",
    "restore": "checkpoints.copies",
    "commands": "commands.run",
}
Answer = TypeVar("Answer")


class Tasks:
    """The tasks of one supervisor; at most one of each name at a time.

    The attribute with a task's name is its answer, None before there is one.
    """

    def __init__(self, children: ChildTable) -> None:
        self._children = children
        self._running: dict[TaskName, tuple[Helper, Callable[[Helper], None]]] = {}
        self.look: EvidenceResult | None = None
        self.evidence: EvidenceResult | None = None
        self.survey: Survey | None = None
        self.joint: JointAnswer | None = None
        self.keep: KeepAnswer | None = None
        self.restore: RestoreAnswer | None = None
        self.commands: tuple[CommandResult, ...] | None = None

    @property
    def running(self) -> frozenset[TaskName]:
        return frozenset(self._running)

    def poll(self) -> None:
        """Read the answers of exited tasks, by the table of children."""
        for name, (helper, finish) in list(self._running.items()):
            if not helper.running:
                del self._running[name]
                finish(helper)

    def discard(self, name: TaskName) -> None:
        setattr(self, name, None)

    def collect(self, request: EvidenceRequest) -> None:
        name: TaskName = "look" if request.mode == "look" else "evidence"

        def finish(helper: Helper) -> None:
            problem, seconds = helper.why_no_answer(), helper.seconds
            result = read_result(request) or read_partial(request)
            setattr(self, name, result or _no_evidence(request, problem, seconds))

        try:
            forget_answers(request)
            question, folder = without_secrets(request), Path(request.staging_dir)
            self._start(name, question, folder, request.deadline_s, finish)
        except OSError as error:
            why = f"the collector could not be started: {error}"
            setattr(self, name, _no_evidence(request, why, 0.0))

    def scan_checkpoints(
        self, request: SurveyRequest, folder: Path, *, keep: Path, deadline_s: float
    ) -> None:
        """Start a scan of the checkpoints; `keep` gets a copy where there is room.

        Question and answer lie in `folder`, in memory: on a full disk there would be no answer, and
        the next attempt would begin from its start. OSError (of PASSING): try again later. Any
        other error becomes the answer.
        """

        def kept(answer: Survey) -> None:
            with suppress(OSError):
                replace_json(keep, answer)

        def failed(problem: str) -> Survey:
            return Survey(findings=(), directories=(), problem=problem, failed=True)

        self.ask("survey", request, folder, Survey, failed, deadline_s=deadline_s, then=kept)

    def run_commands(self, order: CommandOrder, folder: Path, env: Mapping[str, str]) -> None:
        """Start the user's commands that a restart waits for."""

        def without(problem: str) -> tuple[CommandResult, ...]:
            return failed(order, said(problem))

        kind, limit_s = tuple[CommandResult, ...], order.within_s - COMMAND_EXTRA_S
        self.ask("commands", order, folder, kind, without, deadline_s=limit_s, env=env)

    def ask(
        self,
        name: TaskName,
        request: msgspec.Struct,
        folder: Path,
        kind: type[Answer],
        failed: Callable[[str], Answer],
        *,
        deadline_s: float,
        then: Callable[[Answer], None] = lambda _: None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a task that writes one answer of this kind into the folder.

        Without an answer, `failed` makes one of the reason.
        """

        def finish(helper: Helper) -> None:
            answer = helper.answer(kind) or failed(helper.why_no_answer())
            setattr(self, name, answer)
            then(answer)

        try:
            self._start(name, request, folder, deadline_s, finish, env=env)
        except OSError as error:
            if name == "survey" and error.errno in PASSING:
                raise
            setattr(self, name, failed(f"it could not be started: {error}"))

    def _start(
        self,
        name: TaskName,
        request: msgspec.Struct,
        folder: Path,
        deadline_s: float,
        finish: Callable[[Helper], None],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.discard(name)
        helper = Helper(self._children, f"task-{name}", folder)
        limit_s = deadline_s + EXTRA_S
        argv = module(f"watchdog_train.{MODULES[name]}")
        helper.start(argv, question=request, deadline_s=limit_s, env=env)
        self._running[name] = (helper, finish)


def _no_evidence(request: EvidenceRequest, problem: str, seconds: float) -> EvidenceResult:
    return EvidenceResult(
        stall_id=request.verdict.id,
        dir=request.out_dir,
        seconds=seconds,
        problem=problem,
    )
