"""Processes that are nobody's business: they look like the training, or like orphans of it.

Each notes the signals that reach it; at the end of a case all of them must run untouched.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import isolation
from tests.support import RunningWtrain, of_type, read_log, run_wtrain, start_wtrain, wait_until

READY_S = 180.0
OTHER_RUNS = "other-runs"
SUPERVISED = ("another argument", "a task of an array", "an orphaned run")


def state_of(pid: int) -> str | None:
    """The state letter of a process; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return None


@dataclass
class Bare:
    """A process without a supervisor."""

    name: str
    process: subprocess.Popen[bytes]
    notes: Path

    def harm(self) -> str | None:
        """What was done to it; None: nothing."""
        if self.process.poll() is not None:
            return f"{self.name} (pid {self.process.pid}) ended with {self.process.returncode}"
        if state_of(self.process.pid) in ("T", "t", "Z"):
            return f"{self.name} (pid {self.process.pid}) is stopped"
        heard = [line for line in self.notes.read_text("ascii").split() if line != "ready"]
        return f"{self.name} (pid {self.process.pid}) got signals {heard}" if heard else None

    def end(self) -> str | None:
        """Our own end of it."""
        self.process.kill()
        self.process.wait(10)
        return None


@dataclass
class Supervised:
    """Another run of this user, idle, which must still be there and unsignalled."""

    name: str
    wtrain: RunningWtrain
    run_dir: Path
    notes: Path
    orphaned: bool = False

    def harm(self) -> str | None:
        """What was done to it; None: nothing."""
        if not self.orphaned and self.wtrain.process.poll() is not None:
            return f"{self.name}: its wtrain ended with {self.wtrain.process.returncode}"
        heard = [line for line in self.notes.read_text("ascii").split() if line != "ready"]
        if heard:
            return f"{self.name}: its training got signals {heard}"
        events = read_log(self.run_dir)
        wrong = {"signalled", "attempt_exited", "stall_declared", "adopted", "stop_requested"}
        found = [event["type"] for event in events if event["type"] in wrong]
        launched = of_type(events, "attempt_launched")
        if found:
            return f"{self.name}: its log has {found}"
        if state_of(launched[-1]["pid"]) in (None, "T", "t", "Z"):
            return f"{self.name}: its training does not run"
        return None

    def end(self) -> str | None:
        """Stopped as a person would; the problem when that fails."""
        stopped = run_wtrain(
            "stop", "--now", str(self.run_dir), cwd=self.wtrain.cwd, timeout_s=90
        ).returncode
        code = 77 if self.orphaned else self.wtrain.result(30).returncode
        if code != 77 or stopped not in (0, 77):
            return f"{self.name}: `wtrain stop` gave {stopped}, its wtrain {code}"
        return None


Bystander = Bare | Supervised


class Crowd:
    """The bystanders of one case."""

    def __init__(self, cwd: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.cwd = cwd
        self._command = list(command)
        self._env = dict(env)
        self.members: list[Bystander] = []

    def gather(self, chance: random.Random) -> None:
        """Whoever is there before the training starts."""
        twin = {"CUDA_VISIBLE_DEVICES": "1"}
        self._bare("nohup twin", ["nohup", *self._command], twin, hup_ignored=True)
        # Its arguments are those of a keeper and a collector of ours.
        words = [sys.executable, self._program(), "wtrain", "run", "keeper/__main__.py"]
        self._bare("look-alike", [*words, "watchdog_train.evidence.collect"], {})
        self._supervised(chance.choice(SUPERVISED))

    def pretend(self, token: Mapping[str, str]) -> None:
        """Processes with the token of the run under way that are not its own."""
        other = {**token, "WTRAIN_SCOPE": "elsewhere/another-boot/"}
        self._bare("token of another boot", self._words(), other)
        self._bare("token of another run", self._words(), {**token, "WTRAIN_TOKEN": "0" * 32})

    def take_pid(self, pid: int) -> bool:
        """A bystander with a pid that was a member's; whether that came off."""
        notes = self.cwd / f"bystander-{len(self.members)}.txt"
        env = {**self._env, "CHAOS_IDLE": str(notes)}
        process = isolation.start_as(pid, lambda: self._start(self._words(), env))
        if process is None:
            return False
        self._ready(notes)
        self.members.append(Bare(f"heir of pid {pid}", process, notes))
        return True

    def harm(self) -> list[str]:
        """What was done to any of them."""
        return [harm for one in self.members if (harm := one.harm()) is not None]

    def disperse(self) -> list[str]:
        """End them all; problems."""
        problems = [problem for one in self.members if (problem := one.end()) is not None]
        self.members.clear()
        return problems

    def _program(self) -> str:
        return next(word for word in self._command if word.endswith(".py"))

    def _words(self) -> list[str]:
        at = self._command.index(self._program())
        return [sys.executable, *self._command[at:]]

    def _bare(
        self, name: str, argv: list[str], env: Mapping[str, str], *, hup_ignored: bool = False
    ) -> None:
        notes = self.cwd / f"bystander-{len(self.members)}.txt"
        full = {**self._env, **env, "CHAOS_IDLE": str(notes)}
        if hup_ignored:
            argv = [argv[0], *self._words()]
        process = self._start(argv, full)
        self._ready(notes)
        self.members.append(Bare(name, process, notes))

    def _start(self, argv: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=self.cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def _ready(notes: Path) -> None:
        ready: Callable[[], bool] = lambda: notes.exists() and "ready" in notes.read_text()  # noqa: E731
        wait_until(ready, READY_S, f"a bystander is ready ({notes.name})")

    def _others(self) -> list[Path]:
        return list((self.cwd / OTHER_RUNS).glob("bystander-*/events.jsonl"))

    def _supervised(self, name: str) -> None:
        notes = self.cwd / f"bystander-{len(self.members)}.txt"
        env = {"CHAOS_IDLE": str(notes), "CHAOS_SUPERVISED": "1"}
        command = self._words()
        if name == "another argument":
            command[command.index("--steps") + 1] = "61"
        elif name == "a task of an array":
            env["SLURM_ARRAY_TASK_ID"] = "7"
        else:
            command.append("--another-training")
        options = ("--name", "bystander", "--runs-dir", OTHER_RUNS, "--startup-timeout", "1h")
        started = start_wtrain("run", *options, "--", *command, cwd=self.cwd, env=env)
        self._ready(notes)
        (log,) = wait_until(self._others, READY_S, "the run of a bystander has its log")
        run_dir = log.parent
        launched = lambda: of_type(read_log(run_dir), "attempt_launched")  # noqa: E731
        wait_until(launched, READY_S, "the training of a bystander is known")
        one = Supervised(name, started, run_dir, notes)
        if name == "an orphaned run":
            started.send(signal.SIGKILL)
            started.process.wait(10)
            one.orphaned = True
        self.members.append(one)
