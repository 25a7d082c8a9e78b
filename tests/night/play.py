"""What happens in the night, in its order; nothing is judged here."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.night.sink import Sink
from tests.night.stage import (
    BIN,
    Disk,
    NightError,
    Terminal,
    end_what_is_left,
    environment,
    shared_memory,
    until,
    wtrain,
    wtrain_json,
)
from tests.support import (
    EXAMPLES,
    Event,
    is_alive,
    marked_processes,
    of_type,
    read_log,
    write_wtrain,
)
from watchdog_train.core.policy import Limits, Timing, WaitLimits

HERE = Path(__file__).resolve().parent
ATTEMPT_S = 600.0
"""For one thing to happen: a hang and its cure, on a slow machine."""
ROOM_LEFT_BYTES = 3_000_000
"""Less than a checkpoint, enough for some lines of a log."""


@dataclass(frozen=True)
class Length:
    """How long a night is, in steps of the training; all happens at multiples of an epoch."""

    steps_per_epoch: int
    save_steps: int
    batch: int
    settings: str
    """Of wtrain, as YAML."""
    limits: Limits

    @property
    def steps(self) -> int:
        return 12 * self.steps_per_epoch

    def at(self, epochs: float) -> int:
        return round(epochs * self.steps_per_epoch)


TELLING = "notify: {every_s: 3}\n"
NEWS = Limits(timing=Timing(progress_s=2))
"""News faster than anybody wants them; what decides about a stall is left alone."""
WHOLE = Length(steps_per_epoch=50, save_steps=25, batch=16, settings=TELLING, limits=NEWS)
FAST = Length(
    steps_per_epoch=20,
    save_steps=10,
    batch=4,
    settings=TELLING
    + """\
detection:
  silence_s: 4
stopping: {hang_grace_s: 1}
""",
    limits=Limits(
        patience=WaitLimits(
            proven_early_s=10, unknown_s=8, unknown_early_s=10, cost_most_s=8, poll_s=8, again_s=8
        ),
        timing=Timing(outlive_s=3, backoff_first_s=0.2, progress_s=2),
    ),
)


@dataclass
class Night:
    """What was done, and what can be seen of it."""

    length: Length
    folder: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    told: list[tuple[float, str]] = field(default_factory=list)
    """What the play did, and when (Unix seconds)."""
    began: float = field(default_factory=time.time)
    exit_code: int | None = None
    hung_up_at: float = 0.0
    filled_at: float | None = None
    freed_at: float | None = None
    terminal_said: str = ""
    adopter_said: str = ""
    left_processes: dict[int, str] = field(default_factory=dict)
    left_shared_memory: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shared_memory_before = shared_memory()
        self.sink = Sink()
        self.disk = Disk(self.folder / "disk")
        self.work = self.disk.folder / "work"
        self.work.mkdir()
        (self.folder / "once").mkdir()
        self.apprise = importlib.util.find_spec("apprise") is not None
        urls = [f"http://127.0.0.1:{self.sink.port}/plain"]
        if self.apprise:
            urls.append(f"form://127.0.0.1:{self.sink.port}/apprise")
        self.env = environment(
            self.folder / "home",
            self.marker,
            {
                "PYTHONPATH": str(HERE / "plants"),
                "NIGHT_FAULTS": json.dumps(self._faults()),
                "WTRAIN_NOTIFY": " ".join(urls),
            },
        )

    def _faults(self) -> dict[str, object]:
        at = self.length.at
        return {
            "once": str(self.folder / "once"),
            "tracker": self.sink.tracker_port,
            "faults": [
                {"kind": "lock-at-fork", "rank": 1, "step": at(2)},
                {"kind": "killed", "rank": 1, "step": at(3.7)},
                {"kind": "other-collective", "rank": 1, "step": at(5.3)},
                {"kind": "tracker", "rank": 0, "step": at(8.3)},
            ],
        }

    @property
    def run_dir(self) -> Path:
        return (self.work / "wtrain-runs" / "latest").resolve()

    @property
    def events(self) -> list[Event]:
        return read_log(self.run_dir)

    def note(self, what: str) -> float:
        """Something that the play has done just now; returns when."""
        now = time.time()
        self.told.append((now, what))
        print(f"night: {now - self.began:6.1f} s  {what}", flush=True)
        return now

    # -- the acts -------------------------------------------------------------------------------
    def perform(self) -> None:
        """From the evening to the morning."""
        self._evening()
        self._supervisor_dies()
        adopter = self._somebody_adopts()
        if self.disk.mounted:
            self._disk_fills_up(adopter)
        self._morning(adopter)

    def _evening(self) -> None:
        length = self.length
        (self.work / "wtrain.yaml").write_text(length.settings, "utf-8")
        own = write_wtrain(self.work, length.limits).parent
        self.env["PATH"] = f"{own}{os.pathsep}{self.env['PATH']}"
        terminal = Terminal(self.work, self.env)
        training = [
            "torchrun", "--standalone", "--nproc-per-node", "2", str(HERE / "train.py"),
            "--text", str(EXAMPLES / "text.txt"), "--steps", str(length.steps),
            "--steps-per-epoch", str(length.steps_per_epoch),
            "--save-steps", str(length.save_steps), "--batch", str(length.batch),
        ]  # fmt: skip
        line = f"wtrain run -d --until-first-step --name night -- {shlex.join(training)}"
        self.note("wtrain run -d, on a terminal")
        code = terminal.type(line, ATTEMPT_S)
        self.terminal_said = terminal.shown
        if code != 0:
            raise NightError(f"it ended with {code}:\n{terminal.shown}")
        terminal.hang_up()
        self.hung_up_at = self.note("terminal closed: its shell got SIGHUP and is gone")

    def _supervisor_dies(self) -> None:
        step = self.length.at(7.6)
        until(lambda: self._reached(step), 5 * ATTEMPT_S, f"step {step} is trained", poll_s=1.0)
        found = self._status()
        pid = found["supervisor"]["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_alive(pid), 10, "the supervisor is gone")
        self.note(f"supervisor killed (SIGKILL) near step {self._step()}")

    def _somebody_adopts(self) -> subprocess.Popen[bytes]:
        """Woken by a probe that fails."""
        until(lambda: wtrain("probe", cwd=self.work, env=self.env).returncode == 1, 60, "no life")
        until((self.folder / "once" / "tracker").exists, ATTEMPT_S, "the third hang has begun")
        self.note("the probe fails; training hangs by now, and nobody looks")
        with (self.folder / "adopter.txt").open("wb") as said:
            adopter = subprocess.Popen(
                [str(BIN / "wtrain"), "adopt"],
                cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        self._wait_for(adopter, lambda: of_type(self.events, "adopted"), "it is adopted")
        self.note("wtrain adopt")
        return adopter

    def _disk_fills_up(self, adopter: subprocess.Popen[bytes]) -> None:
        step = self.length.at(9.6)
        self._wait_for(adopter, lambda: self._step() >= step, f"step {step} is trained")
        self.disk.fill(ROOM_LEFT_BYTES)
        self.filled_at = self.note(f"disk filled but for {ROOM_LEFT_BYTES / 1e6:.0f} MB")
        self._wait_for(
            adopter,
            lambda: any("waits for room" in line for line in self._heard()),
            "somebody is told that there is no room",
        )
        self.disk.free()
        self.freed_at = self.note("woken by the message, somebody makes room")

    def _morning(self, adopter: subprocess.Popen[bytes]) -> None:
        self._wait_for(adopter, lambda: adopter.poll() is not None, "the run ends", 4 * ATTEMPT_S)
        self.exit_code = adopter.wait()
        self.note(f"the run is over, exit code {self.exit_code}")

    # -- looking --------------------------------------------------------------------------------
    def _wait_for(
        self, adopter: subprocess.Popen[bytes], look: object, why: str, timeout_s: float = ATTEMPT_S
    ) -> None:
        def looked() -> bool:
            assert callable(look)
            if look():
                return True
            if adopter.poll() is not None:
                raise NightError(f"the run ended with {adopter.poll()} before this: {why}")
            return False

        until(looked, timeout_s, why)

    def _reached(self, step: int) -> bool:
        found = self._status()
        if found.get("state") == "finished":
            raise NightError(f"the run is over before step {step}: {found.get('outcome')}")
        return int((found.get("progress") or {}).get("step") or 0) >= step

    def _status(self) -> dict[str, Any]:
        return wtrain_json("status", cwd=self.work, env=self.env) or {}

    def _step(self) -> int:
        return int((self._status().get("progress") or {}).get("step") or 0)

    def _heard(self) -> list[str]:
        return self.sink.lines("/plain")

    # -- afterwards -----------------------------------------------------------------------------
    def look_for_leftovers(self) -> None:
        """What is still there; processes get a moment to end."""
        try:
            until(lambda: not marked_processes(self.marker), 10, "its processes end")
        except NightError:
            self.left_processes = marked_processes(self.marker)
        # Others work on this machine, too: only what bears the run's name or one of its pids.
        new = shared_memory() - self.shared_memory_before
        own = {self.run_dir.name, *(f"_{event['pid']}_" for event in self.events if "pid" in event)}
        self.left_shared_memory = {name for name in new if any(part in name for part in own)}
        said = self.folder / "adopter.txt"
        self.adopter_said = said.read_text("utf-8", "replace") if said.exists() else ""

    def close(self) -> None:
        """Nothing of the play stays, whatever has happened."""
        end_what_is_left(self.marker)
        run_id = self.run_dir.name
        for name in shared_memory() if run_id != "latest" else ():
            if run_id in name:  # the slots of a play that broke off
                shutil.rmtree(Path("/dev/shm") / name, ignore_errors=True)
        self.sink.close()
        self.disk.close()


def new_folder() -> Path:
    """A short path: sockets are made below it."""
    return Path(tempfile.mkdtemp(prefix="wtrain-night-"))
