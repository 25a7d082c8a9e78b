"""Runs a script as a supervised training would run it, without a supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import watchdog_train
from tests.support import run_command
from watchdog_train.client import layout
from watchdog_train.core.model import SlotReading
from watchdog_train.store import slots
from watchdog_train.store.control import ControlPage

PACKAGE = Path(watchdog_train.__file__).resolve().parent
INJECT = PACKAGE / "client" / "inject"
FOREIGN = ("PYTHONPATH", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "RANK", "LOCAL_RANK", "WORLD_SIZE")


def plain_environment() -> dict[str, str]:
    """The environment of this test without anything of wtrain or of a launcher."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WTRAIN_") and name not in FOREIGN
    }


@dataclass
class Training:
    """Where one supervised script finds its directories, and what it left in them."""

    root: Path
    settings: list[dict[str, Any]] = field(default_factory=list)
    resume: dict[str, Any] | None = None
    attempt: int = 1

    def __post_init__(self) -> None:
        self.slot_dir.mkdir(mode=0o700, exist_ok=True)
        self.attempt_dir.mkdir(exist_ok=True)

    @property
    def slot_dir(self) -> Path:
        return self.root / "slots"

    @property
    def attempt_dir(self) -> Path:
        return self.root / "attempt"

    def resumes(self, kind: str, path: object, **order: Any) -> None:
        """The order to resume from this checkpoint, of this format, by the hook if not told."""
        self.resume = {"via": "hook", "format": kind, "path": str(path)} | order

    def control(self) -> ControlPage:
        """The control page, made when there is none."""
        return ControlPage.create(self.slot_dir / layout.CONTROL_FILE)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the supervisor would export."""
        environment = plain_environment() | {
            "PYTHONPATH": str(INJECT),
            layout.ENV_RUN_ID: "test-run",
            layout.ENV_SLOT_DIR: str(self.slot_dir),
            layout.ENV_ATTEMPT_DIR: str(self.attempt_dir),
            layout.ENV_ATTEMPT: str(self.attempt),
        }
        if self.settings:
            environment[layout.ENV_SETTINGS] = json.dumps(self.settings)
        if self.resume is not None:
            environment[layout.ENV_RESUME_HOOK] = json.dumps(self.resume)
        return environment | dict(extra or {})

    def run(
        self,
        script: str,
        *arguments: str,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        return run_script(
            self.root, script, *arguments, python=python, env=self.environment(env), options=options
        )

    def json(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
        """Run a script that must end well and quietly; the JSON of its last line."""
        done = self.run(script, *arguments, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def alone(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same script to its end without wtrain."""
        done = run_script(self.root, script, *arguments, env=plain_environment())
        assert done.returncode == 0, done.stderr
        return done

    def start(
        self,
        script: str,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        python: tuple[str, ...] = (sys.executable,),
    ) -> subprocess.Popen[str]:
        """Start a script in a session of its own; its streams are pipes."""
        path = _write(self.root, script)
        return subprocess.Popen(
            [*python, str(path), *arguments],
            cwd=self.root,
            env=self.environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def waiting(self, script: str, first: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
        """A script that has written this line, and then waits for one, with `how` of start().

        It gets that line at the end, and must end well and quietly where the test went well.
        """
        process = self.start(script, **how)
        try:
            assert process.stdout.readline() == f"{first}\n", process.communicate("\n", 20)[1]
            yield process
        except BaseException:
            process.communicate("\n", timeout=30)
            raise
        _, stderr = process.communicate("\n", timeout=30)
        assert (process.returncode, stderr) == (0, "")

    def reading(self) -> SlotReading:
        """The only slot there is."""
        (reading,) = slots.read_slots(self.slot_dir).readings
        return reading

    def note(self) -> dict[str, Any]:
        """The only note file there is."""
        (path,) = self.slot_dir.glob("*" + layout.NOTE_SUFFIX)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def all_notes(self) -> list[dict[str, Any]]:
        """Every note file, of whatever process."""
        paths = sorted(self.slot_dir.glob("*" + layout.NOTE_SUFFIX))
        return [json.loads(path.read_text()) for path in paths]

    def saves(self) -> tuple[slots.SaveRecord, ...]:
        """What was recorded as saved."""
        return slots.read_saves(self.attempt_dir)


def answered(process: subprocess.Popen[str]) -> str:
    """Gives a script of waiting() its line; what it writes then."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def run_script(
    root: Path,
    script: str,
    *arguments: str,
    python: str = sys.executable,
    env: Mapping[str, str],
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a script with exactly this environment."""
    path = _write(root, script)
    return run_command(
        [python, *options, str(path), *arguments], cwd=root, env=dict(env), timeout_s=120, code=None
    )


def _write(root: Path, script: str) -> Path:
    path = root / "script.py"
    path.write_text(script)
    return path
