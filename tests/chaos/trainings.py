"""The trainings that faults are tried on: how each is started, and what it must end with."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import PROGRAMS, bin_path

BASELINE_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Shape:
    """One kind of training."""

    name: str
    weight: int
    """How often it is drawn, relative to the others."""
    program: str
    words: tuple[str, ...] = ()
    steps: int = 60
    step_s: float = 0.05
    at: int = 20
    """The step at which planted trouble strikes."""
    run_options: tuple[str, ...] = ()
    """Of `wtrain run`: how it is given a checkpoint."""
    launcher: tuple[str, ...] = ()
    """Before the program; its process is the root then, and the ranks are its children."""
    tasks: int = 1
    """Each under a wtrain of its own: the first one leads, the others are its agents."""
    workers: int = 0
    needs_subreaper: bool = False
    """Its helpers leave the family with an empty environment: only a subreaper gets them."""
    same_as: str = ""
    """Another shape that makes the very same steps, and is cheaper to try undisturbed."""

    @property
    def light(self) -> bool:
        """Without torch: a second instead of five."""
        return self.program == "chaos_light.py"

    def command(self, trouble: str = "none") -> list[str]:
        """What is supervised."""
        start = list(self.launcher) or [sys.executable]
        command = [*start, str(PROGRAMS / self.program), *self.words]
        command += ["--steps", str(self.steps), "--step-s", str(self.step_s)]
        return [*command, "--at", str(self.at), "--trouble", trouble]


TORCH = "chaos_training.py"
NO_HOOK = ("--checkpoints", "checkpoints")
"""No hook tells where a script without torch saves."""
RESUME = ("--resume-arg", "--resume {checkpoint}")
TORCHRUN = (str(bin_path("torchrun")), "--nproc-per-node", "2")
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("beats", 10, "chaos_light.py", ("beats",), run_options=NO_HOOK),
        Shape(
            "helpers",
            5,
            "chaos_light.py",
            ("helpers",),
            run_options=NO_HOOK,
            needs_subreaper=True,
            same_as="beats",
        ),
        Shape("loop", 3, TORCH, ("loop",), run_options=RESUME),
        Shape("fork", 3, TORCH, ("fork",), run_options=RESUME, workers=2, same_as="loop"),
        Shape("spawn", 2, TORCH, ("spawn",), run_options=RESUME, workers=2, same_as="loop"),
        Shape(
            "torchrun",
            3,
            TORCH,
            ("ranks",),
            run_options=RESUME,
            launcher=(*TORCHRUN, "--standalone"),
        ),
        Shape("tasks", 6, TORCH, ("ranks",), run_options=RESUME, tasks=2, same_as="torchrun"),
        Shape("trainer", 2, "chaos_trainer.py", steps=40, at=15),
    )
}
"""By name. Most cases take the light ones: what is tried is wtrain, not torch."""


def is_possible_here(shape: Shape) -> bool:
    """Whether wtrain can hold its promises for such a training with this system."""
    subreaper = sys.platform == "linux" and os.environ.get("WTRAIN_SYSTEM") != "portable"
    return subreaper or not shape.needs_subreaper


def baseline(shape: Shape, folder: Path, env: dict[str, str]) -> str:
    """The checksum of an undisturbed training, without wtrain.

    Raises:
        RuntimeError: it does not even end well without a fault.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = shape.command()
    command[command.index("--step-s") + 1] = "0"
    ended = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=BASELINE_TIMEOUT_S,
    )
    journal = folder / "journal.txt"
    for line in journal.read_text("ascii").splitlines() if journal.exists() else ():
        words = line.split()
        if words[3] == "finished":
            return words[5]
    raise RuntimeError(f"{shape.name} fails without wtrain:\n{ended.stderr[-3000:]}")
