"""Runs trials one after another, each until its steps, its standstill or its end.

Must leave nothing running: a trial is ended through its own supervisor, and waited for.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from watchdog_train.bisecting.outputs import of_its_own
from watchdog_train.bisecting.trial import Order
from watchdog_train.config import dump_policy
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.bisect import AS_IT_IS, Change, Trial, changes, has_enough, judge
from watchdog_train.core.starting.command_line import find, with_one_rank
from watchdog_train.core.starting.launchers import describe
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.store import requests
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import RunDirectory, runs_in
from watchdog_train.whole_files import replace_json, replace_whole

POLL_S = 0.5
END_S = 120.0
"""For a trial that was told to end: its evidence, its kill, its last words."""
_FINISHED = ("hung", "crashed")


class Bisection:
    """The trials of one command."""

    def __init__(
        self,
        command: tuple[str, ...],
        policy: Policy,
        folder: Path,
        *,
        cwd: str,
        steps: int,
        seconds: float,
        output_options: Sequence[str] = (),
        in_place: bool = False,
        only: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.said: tuple[str, ...] = ()
        """Of the places that trials write to."""
        self._command, self._policy, self._cwd = command, policy, cwd
        self._steps = steps
        self._until = time.monotonic() + seconds
        self._output_options, self._in_place = tuple(output_options), in_place
        self._only = tuple(only)
        self._one_rank = with_one_rank(command)

    def trials(self) -> Iterator[Trial]:
        """Each as it ends, the command as it is first; no others where that one runs."""
        base = self._try(AS_IT_IS)
        yield base
        if base.outcome not in _FINISHED:
            return
        for change in changes(self._ranks(), base.phase, base.remedies):
            if self._only and change.id not in self._only:
                continue
            # A trial with too little time would say nothing: the standstill took this long.
            if self._until - time.monotonic() < min(base.seconds, 60.0):
                return
            yield self._try(change)

    def _ranks(self) -> int | None:
        found = find(self._command)
        return None if found is None or self._one_rank is None else describe(found, {}).processes

    def _try(self, change: Change) -> Trial:
        number = sum(1 for _ in self.folder.glob("trial-*.json")) + 1
        name = f"trial-{number:02d}-{change.id}"
        command = self._one_rank if change.one_rank and self._one_rank else self._command
        if not self._in_place:
            places = self.folder / f"{name}-output"
            command, self.said = of_its_own(command, self._cwd, self._output_options, places)
        settings = self.folder / f"{name}.yaml"
        replace_whole(
            settings, dump_policy(_policy_of(self._policy, self.folder, name, change)).encode()
        )
        order = self.folder / f"{name}.json"
        replace_json(order, Order(settings=str(settings), command=command))
        begun = time.monotonic()
        with (self.folder / f"{name}.log").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "watchdog_train.bisecting.trial", str(order)],
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            state = self._follow(process, name)
        except BaseException:
            self._end(process, name, "wtrain bisect was interrupted")
            raise
        run = self._run(name)
        if run is None:
            raise _not_begun(self.folder / f"{name}.log")
        return judge(
            change,
            state,
            seconds=time.monotonic() - begun,
            run_dir=str(run.path),
            steps=self._steps,
        )

    def _follow(self, process: subprocess.Popen[bytes], name: str) -> State:
        """The state of a trial at its end; ends it when it has shown what it can show."""
        told = False
        while process.poll() is None:
            state = self._state(name)
            late = time.monotonic() >= self._until and not _is_ending(state)
            if not told and (late or has_enough(state, self._steps)):
                told = True
                self._end(process, name, "wtrain bisect has seen enough")
            time.sleep(POLL_S)
        return self._state(name)

    def _end(self, process: subprocess.Popen[bytes], name: str, by: str) -> None:
        run = self._run(name)
        if run is not None and process.poll() is None:
            requests.post(run, "stop_now", by)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise WtrainError(
                f"a trial has not ended within {END_S:.0f} s",
                context=name,
                hint=f"wtrain stop --now {run.path if run is not None else name}",
                reference="bisect-trial-late",
                exit_code=EXIT_RETRY_ELSEWHERE,
            ) from None

    def _run(self, name: str) -> RunDirectory | None:
        found = [run for run in runs_in(self.folder) if run.run_id.startswith(f"{name}-")]
        return found[-1] if found else None

    def _state(self, name: str) -> State:
        run = self._run(name)
        if run is None or not run.events.exists():
            return State()
        return replay(read_events(run.events, strict=False, spill_dir=run.spill_dir).events)


def _is_ending(state: State) -> bool:
    """Whether a trial is on its way to its end by itself: its evidence is worth the wait."""
    attempt = state.attempt
    return attempt is not None and (attempt.stall_id is not None or attempt.ended)


def _policy_of(policy: Policy, folder: Path, name: str, change: Change) -> Policy:
    """The user's settings; a trial is not restarted, tells nobody, and asks for nothing."""
    recovery = msgspec.structs.replace(
        policy.recovery,
        on_stall="stop",
        on_crash="stop",
        observe=False,
        duplicates="ignore",
        keep_bytes=0,
        with_remedies=tuple(dict.fromkeys((*policy.recovery.with_remedies, *change.remedies))),
        allow=tuple(dict.fromkeys((*policy.recovery.allow, "training", "device"))),
    )
    return msgspec.structs.replace(
        policy,
        name=name,
        runs_dir=str(folder),
        recovery=recovery,
        notify=msgspec.structs.replace(policy.notify, urls=()),
    )


def _not_begun(log: Path) -> WtrainError:
    words = log.read_text("utf-8", "replace").strip()[-2000:]
    return WtrainError(
        "a trial could not be begun",
        context=words or str(log),
        hint=f"see {log}",
        reference="bisect-trial-failed",
    )
