"""One case: a training under wtrain, a fault at its moment, whoever must go on then, the end."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.bystanders import Crowd
from tests.chaos.moments import Moment
from tests.chaos.trainings import Shape
from tests.support import (
    FAST,
    FAST_LIMITS,
    CompletedRun,
    Event,
    RunningWtrain,
    changed,
    children_of,
    free_port,
    is_alive,
    of_type,
    read_log,
    run_directories,
    start_wtrain,
)
from watchdog_train.store.lock import is_held

CASE_S = 400.0
"""A case that has not ended by then has failed: nothing here may wait for ever."""
ADOPT_WITHIN_S = 2.0
SETTINGS = (
    FAST.replace("detection:\n", "detection:\n  stopped_timeout_s: 4\n").replace(
        "recovery:\n", "recovery:\n  room_wait_s: 20\n"
    )
    + """\
job: {gather_s: 60}
evidence:
  total_s: 8
  process_s: 4
"""
)
# Planted hangs come later: on a machine that is busy a start may take its time.
LIMITS = changed(
    FAST_LIMITS, patience={"proven_early_s": 90, "unknown_early_s": 90}, timing={"look_s": 4}
)
"""Limits of seconds; what counts as idle is as ever."""


HELPERS = {
    "scan": (b"watchdog_train.checkpoints.survey",),
    "collector": (b"watchdog_train.evidence.collect", b"watchdog_train.checkpoints.survey"),
    "new keeper": (b"watchdog_train/keeper/__main__.py",),
}
"""Children of a supervisor by their command lines."""


class NotReachedError(Exception):
    """The moment of the fault did not come: the run had ended before, or had no such process."""


class LateError(Exception):
    """Something did not end in its time."""


@dataclass
class Expected:
    """What the fault of a case may lead to; a fault changes it."""

    codes: set[int] = field(default_factory=lambda: {0})
    """Exit codes of the last supervisor."""
    harmless: bool = False
    """The training must not have been started anew because of it."""
    spoiled: set[tuple[int, int]] = field(default_factory=set)
    """(step, line of the journal): checkpoints that the fault has damaged, at that moment."""
    log_damaged: bool = False
    """The fault has cut whole lines out of the log: then it is said, and the rest is readable."""
    full_for_good: bool = False
    """The disk of the run directory got no room again: the end of the log stays in memory."""
    never_started: bool = False
    """There may be no run at all: it was ended before it began."""
    also: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Checks of the fault's own, after the run; they yield problems."""


class Case:
    """One case under way."""

    def __init__(self, cwd: Path, shape: Shape, trouble: str, seed: str) -> None:
        self.cwd = cwd
        self.shape = shape
        self.trouble = trouble
        self.chance = random.Random(seed)
        self.env: dict[str, str] = {}
        self.stdout: int | None = None
        """A pipe for the output of the run, if the fault is at its other end."""
        self.starter: tuple[str, ...] = ()
        """Words before those of `wtrain run`; empty: the installed one."""
        self.command = shape.command(trouble)
        self.expected = Expected()
        self.crowd: Crowd | None = None
        self.supervisor: RunningWtrain | None = None
        """The newest of them."""
        self.agents: list[RunningWtrain] = []
        """Of the other tasks of its job."""
        self.supervisors: list[RunningWtrain] = []
        self.notes: list[str] = []
        """What the fault did, for whoever reads of a failure."""
        self.complaints: list[str] = []
        """What the fault itself found wrong: an answer other than the documented one."""
        self.impossible = ""
        """Why this fault cannot be tried on this machine, though its preparation was."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._deadline = time.monotonic() + CASE_S

    # -- what is there -------------------------------------------------------------------
    @property
    def run_dir(self) -> Path | None:
        found = run_directories(self.cwd)
        return found[-1] if found else None

    def agent_runs(self) -> list[Path]:
        """Run directories of agents."""
        return run_directories(self.cwd, "wtrain-runs/.agents")

    @property
    def events(self) -> list[Event]:
        run_dir = self.run_dir
        if run_dir is None or not (run_dir / "events.jsonl").is_file():
            return []
        try:
            return read_log(run_dir)
        except (OSError, ValueError):  # a log that a fault has cut
            return []

    @property
    def launched(self) -> Event:
        """The newest attempt_launched.

        Raises:
            NotReachedError: nothing was launched yet.
        """
        found = of_type(self.events, "attempt_launched")
        if not found:
            raise NotReachedError("nothing is launched")
        return found[-1]

    def journal(self) -> list[list[str]]:
        """Lines of the training's own journal, in words."""
        path = self.cwd / "journal.txt"
        return (
            [line.split() for line in path.read_text("ascii").splitlines()] if path.exists() else []
        )

    def pids(self, role: str) -> list[int]:
        """Live processes of the present attempt, or of its supervisor."""
        if role == "supervisor":
            return [self.supervisor.pid] if self.supervisor else []
        if role == "agent":
            return [each.pid for each in self.agents if each.process.poll() is None]
        if role in HELPERS:
            return self._helpers(role)
        newest = self.launched["attempt"]
        trees = [
            one for one in of_type(self.events, "attempt_launched") if one["attempt"] == newest
        ]
        roots = [one["pid"] for one in trees if is_alive(one["pid"])]
        if role == "keeper":
            return [one["keeper_pid"] for one in trees if is_alive(one["keeper_pid"])]
        if role == "launcher":
            return roots if self.shape.launcher else []
        ranks = [pid for root in roots for pid in children_of(root)]
        ranks = [pid for pid in ranks if is_alive(pid)] if self.shape.launcher else roots
        if role == "rank":
            return ranks
        workers = [pid for rank in ranks for pid in children_of(rank) if is_alive(pid)]
        return [pid for pid in workers if b"resource_tracker" not in command_line(pid)]

    def _helpers(self, role: str) -> list[int]:
        assert self.supervisor is not None
        ended = {event["attempt"] for event in of_type(self.events, "attempt_exited")}
        launched = of_type(self.events, "attempt_launched")
        known = {event["keeper_pid"] for event in launched if event["attempt"] in ended}
        return [
            pid
            for pid in children_of(self.supervisor.pid)
            if pid not in known and any(word in command_line(pid) for word in HELPERS[role])
        ]

    def one(self, role: str, within_s: float = 0.0) -> int:
        """One live process of a role, by chance.

        Raises:
            NotReachedError: there is none within this time.
        """
        until = time.monotonic() + within_s
        while not (found := self.pids(role)):
            if time.monotonic() >= until or self.ended():
                raise NotReachedError(f"there is no {role}")
            time.sleep(0.005)
        return self.chance.choice(sorted(found))

    # -- what is done --------------------------------------------------------------------
    def start(self) -> None:
        """wtrain run, for each task of a job."""
        words = ("run", "--config", "fast.yaml", *self.shape.run_options, "--", *self.command)
        port = free_port() if self.shape.tasks > 1 else 0
        first, *others = (
            {**self.env, **_task(number, self.shape.tasks, port)}
            for number in range(self.shape.tasks)
        )
        start = {"stdout": self.stdout, "wtrain": self.starter}
        self._follow(start_wtrain(*words, cwd=self.cwd, env=first, **start))
        self.agents = [start_wtrain(*words, cwd=self.cwd, env=env) for env in others]
        self.supervisors += self.agents
        if self.stdout is not None:
            os.close(self.stdout)

    def adopt(self) -> None:
        """wtrain adopt, by somebody who has noticed after a while."""
        run_dir = self.run_dir
        assert run_dir is not None
        self.notes.append("adopted")
        self._follow(start_wtrain("adopt", run_dir.name, cwd=self.cwd, env=self.env))

    def adopt_agents(self) -> None:
        """wtrain adopt, for each agent's run that has no supervisor and has not ended."""
        for path in self.agent_runs():
            if is_held(path / "lock") or of_type(read_log(path), "run_finished"):
                continue
            self.notes.append(f"adopted {path.name}")
            again = start_wtrain("adopt", str(path), cwd=self.cwd, env=self.env)
            self.agents.append(again)
            self.supervisors.append(again)

    def _follow(self, running: RunningWtrain) -> None:
        self.supervisor = running
        self.supervisors.append(running)

    def ended(self) -> bool:
        """Whether the present supervisor has ended."""
        return self.supervisor is not None and self.supervisor.process.poll() is not None

    def until(self, moment: Moment) -> None:
        """Wait for the moment of the fault.

        Raises:
            NotReachedError: the run ends without it.
        """
        began = time.monotonic()
        while moment.event:
            events = of_type(self.events, moment.event)
            if len(events) >= moment.nth:
                break
            if self.ended():
                raise NotReachedError(f"the run ended without {moment}")
            self._pause(0.01, f"waiting for {moment}")
        else:
            began = self.supervisor.began if self.supervisor is not None else began
        self.wait(moment.delay_s)

    def wait(self, seconds: float) -> None:
        """A part of the case's time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._pause(min(left, 0.02), "a pause")

    def later(self, after_s: float, do: Callable[[], None]) -> None:
        """Have something done while the case is followed."""
        self._later.append((time.monotonic() + after_s, do))

    def kill(self, pid: int, number: signal.Signals) -> None:
        """Send a signal, and remember it."""
        self.notes.append(f"{number.name} to {pid} ({command_line(pid)[:120].decode()})")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise NotReachedError(f"pid {pid} was gone") from None

    def go_on(self, pid: int) -> None:
        """Continue a process that was stopped."""
        if is_alive(pid):
            self.notes.append(f"SIGCONT to {pid}")
            os.kill(pid, signal.SIGCONT)

    def follow(self) -> int:
        """To the end, with `wtrain adopt` where a supervisor was killed; the last exit code.

        Raises:
            LateError: it takes too long.
        """
        while True:
            assert self.supervisor is not None
            while not self.ended():
                self._pause(0.05, "the run goes on")
            code = self.supervisor.process.returncode
            if code != -signal.SIGKILL:
                break
            finished = of_type(self.events, "run_finished")
            if finished:
                self.notes.append("killed after its last word")
                code = finished[-1]["exit_code"]
                break
            if not self.events:
                break  # agents that wait for this leader end after job.gather_s
            self.wait(self.chance.uniform(0.0, ADOPT_WITHIN_S))
            self.adopt()
        while self._busy():
            self._pause(0.05, "the other tasks end")
        self.catch_up()
        return code

    def _busy(self) -> bool:
        """Whether other tasks are at work."""
        runs = (self.cwd / "wtrain-runs").glob("[!.]*/lock")
        agents = (self.cwd / "wtrain-runs" / ".agents").glob("*/lock")
        held = bool(self.agents) and any(is_held(lock) for lock in (*runs, *agents))
        return held or bool(self.pids("agent"))

    def hurry(self, within_s: float) -> None:
        """Whoever hangs is known by a deadline that is sooner than that of all cases."""
        self._deadline = min(self._deadline, time.monotonic() + within_s)

    def ask(
        self,
        *words: str,
        within_s: float = 60.0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CompletedRun:
        """Another command of wtrain; that it hangs is a failure of the case."""
        self.notes.append(f"wtrain {' '.join(words[:4])}")
        running = start_wtrain(*words, cwd=cwd or self.cwd, env={**self.env, **(env or {})})
        return running.result(within_s)

    def complain(self, asked: CompletedRun) -> None:
        """It did not answer as documented."""
        words = " ".join(asked.args[1:4])
        self.complaints.append(f"wtrain {words} gave {asked.returncode}: {asked.stderr[-500:]}")

    def catch_up(self) -> None:
        """Have everything done now that was for later: nothing stays broken."""
        due, self._later = self._later, []
        for _, do in due:
            do()

    def _pause(self, seconds: float, why: str) -> None:
        now = time.monotonic()
        if now > self._deadline:
            raise LateError(f"the case took too long: {why}")
        due = [do for at, do in self._later if at <= now]
        self._later = [(at, do) for at, do in self._later if at > now]
        for do in due:
            do()
        time.sleep(seconds)

    def describe(self) -> str:
        """Everything that a person needs to understand a failure."""
        parts = []
        for running in self.supervisors:
            done: CompletedRun = running.snapshot()
            parts.append(
                f"{' '.join(done.args[:3])} ... exit {done.returncode}\n"
                f"--- stderr\n{done.stderr[-4000:]}\n--- stdout\n{done.stdout[-800:]}"
            )
        if not self.supervisors:
            return "wtrain was not even started"
        try:
            parts.append(f"--- events\n{self.supervisors[-1].snapshot().describe()[-9000:]}")
        except (OSError, ValueError) as error:
            parts.append(f"--- events cannot be shown: {error}")
        journal = [line for line in self.journal() if line[3] != "step"]
        return "\n".join([*parts, f"--- journal without steps\n{json.dumps(journal)[-3000:]}"])

    def status(self) -> dict[str, Any] | None:
        """`wtrain status --json` now."""
        run_dir = self.run_dir
        if run_dir is None:
            return None
        running = start_wtrain("status", str(run_dir), "--json", cwd=self.cwd, env=self.env)
        done = running.result(120)
        try:
            value = json.loads(done.stdout)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def _task(number: int, tasks: int, port: int) -> dict[str, str]:
    """The environment of one task, as a starter of ranks sets it."""
    if tasks == 1:
        return {}
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def command_line(pid: int) -> bytes:
    """Words of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""
