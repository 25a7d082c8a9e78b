"""Runs the cases of a campaign side by side, each in a process and a world of its own."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos import isolation, plan, trainings
from tests.chaos.case import CASE_S
from tests.chaos.results import Result
from tests.support import REPOSITORY, scenario_environment

MARGIN_S = 150.0
"""Beyond the case's own limit: bystanders, checks, a machine that is busy."""


POLL_S = 0.2


@dataclass(frozen=True)
class Options:
    """Which cases, and how many of them."""

    seed: int
    minutes: float | None
    most: int | None
    only: int | None
    kept: bool
    """Whether cases that once failed come first; they count as well."""
    jobs: int
    shapes: Collection[str]
    faults: Collection[str]
    folder: Path
    """To work in; what failed stays there."""


class Campaign:
    """One campaign; `tell` hears of every case as it ends."""

    def __init__(self, options: Options, tell: Callable[[Result], None]) -> None:
        self._options = options
        self._tell = tell
        self._isolated = isolation.prefix() is not None
        self._lock = threading.Lock()
        self._baselines: dict[str, str] = {}
        self._baseline_locks = {name: threading.Lock() for name in trainings.SHAPES}
        self._specs = self.cases()
        self.skipped: dict[str, int] = {}
        """Cases that could not be tried, by the reason."""
        self.results: list[Result] = []
        self._working = 0
        """Threads that have not ended."""
        self._over = False
        """No further case is started."""
        self.problem: str | None = None
        """Why the campaign had to end early: not even an undisturbed training runs here."""

    def run(self) -> list[Result]:
        """All results, in the order of their ends."""
        self._working = self._options.jobs
        threads = [threading.Thread(target=self._work) for _ in range(self._options.jobs)]
        for thread in threads:
            thread.start()
        # Not join(): in Python 3.11 one that Ctrl-C interrupts takes a thread that works for ended.
        while self._working:
            try:
                time.sleep(POLL_S)
            except KeyboardInterrupt:  # noqa: PERF203 - in a loop of polls
                # What runs is brought to its end, or it would be left; what was found is told.
                self._over = True
        return self.results

    def cases(self) -> Iterator[plan.CaseSpec]:
        """What is tried, in order; those that cannot be are counted."""
        options = self._options
        until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        drawn = 0
        for found in self._candidates():
            if until is not None and time.monotonic() >= until:
                return
            if isinstance(found, plan.CaseSpec):
                drawn += 1
                yield found
            else:
                self.skipped[found] = self.skipped.get(found, 0) + 1
            if drawn == options.most:
                return

    def _candidates(self) -> Iterator[plan.CaseSpec | str]:
        """The kept ones, then by number; words for one that cannot be tried."""
        options = self._options
        choice = options.shapes, options.faults
        if options.kept:
            yield from (plan.chosen(one, *choice, isolated=self._isolated) for one in plan.kept())
        numbers = itertools.count(1) if options.only is None else (options.only,)
        for number in numbers:
            yield plan.case(options.seed, number, *choice, isolated=self._isolated)

    def _work(self) -> None:
        try:
            self._work_on()
        finally:
            with self._lock:
                self._working -= 1

    def _work_on(self) -> None:
        while True:
            with self._lock:
                is_on = self.problem is None and not self._over
                spec = next(self._specs, None) if is_on else None
            if spec is None:
                return
            try:
                result = self._run(spec)
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                with self._lock:
                    self.problem = f"the campaign cannot go on: {error}"
                return
            with self._lock:
                self.results.append(result)
                self._tell(result)

    def _run(self, spec: plan.CaseSpec) -> Result:
        folder = self._options.folder / f"{spec.seed}-{spec.number:04d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spec = replace(spec, checksum=self._baseline(spec.shape))
        result = run_one(spec, folder)
        if result.outcome != "failed":
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with self._lock:
                plan.keep(spec)
        return result

    def _baseline(self, name: str) -> str:
        name = trainings.SHAPES[name].same_as or name
        with self._baseline_locks[name]:
            if name not in self._baselines:
                folder = self._options.folder / f"baseline-{name}"
                env = scenario_environment(folder)
                self._baselines[name] = trainings.baseline(trainings.SHAPES[name], folder, env)
                shutil.rmtree(folder, ignore_errors=True)
            return self._baselines[name]


def run_one(spec: plan.CaseSpec, folder: Path) -> Result:
    """One case with its checksum filled in, in a process and a world of its own."""
    return Result.of(spec, _in_process(spec, folder))


def _in_process(spec: plan.CaseSpec, folder: Path) -> dict[str, object]:
    case, answer, said = folder / "case.json", folder / "answer.json", folder / "said.txt"
    case.write_text(json.dumps(spec.to_json()), encoding="utf-8")
    work = [str(case), str(folder / "work"), str(answer)]
    argv, env = isolation.command([sys.executable, "-m", "tests.chaos.run_case", *work])
    with said.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(CASE_S + MARGIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    try:
        told = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        words = said.read_text("utf-8", "replace")[-3000:]
        return {"outcome": "failed", "problems": [f"the case gave no answer: {words}"]}
    assert isinstance(told, dict)
    return told
