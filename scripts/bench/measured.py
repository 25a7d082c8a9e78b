"""What the benchmarks share: a row of the table, runs in turn, the machine and its versions."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WTRAIN = str(BIN / "wtrain")
INJECT = REPOSITORY / "watchdog_train" / "client" / "inject"


@dataclass(frozen=True)
class Row:
    """One line of docs/performance.md."""

    what: str
    values: Sequence[float]
    """One per run; the median is shown with the smallest and the largest."""
    unit: str
    budget: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def holds(self) -> str:
        if self.budget is None:
            return ""
        return "holds" if self.median <= self.budget else "**missed**"

    def cells(self) -> list[str]:
        spread = f"{number(min(self.values))} to {number(max(self.values))}"
        budget = "" if self.budget is None else f"{number(self.budget)} {self.unit}"
        return [
            self.what,
            f"{number(self.median)} {self.unit}",
            spread if len(self.values) > 1 else "",
            str(len(self.values)),
            budget,
            self.holds,
            self.note,
        ]


HEADER = ("what", "median", "from, to", "runs", "budget", "", "note")


def number(value: float) -> str:
    """Three digits."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    return table_of(HEADER, [row.cells() for row in rows])


def table_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, of cells."""
    return "\n".join((row_of(header), "|---" * len(header) + "|", *map(row_of, rows)))


def row_of(cells: Iterable[str]) -> str:
    """One line of such a table."""
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """Where it was measured, and with what."""
    versions = [_version(name) for name in ("torch", "transformers", "lightning", "tqdm")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}; load {load:.1f} at the start"
    )


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def in_turn(runs: int, *acts: Callable[[], float]) -> list[list[float]]:
    """Every act once a turn, so that what the machine does otherwise hits all of them alike."""
    found: list[list[float]] = [[] for _ in acts]
    for turn in range(runs):
        order = range(len(acts)) if turn % 2 == 0 else reversed(range(len(acts)))
        for index in order:
            found[index].append(acts[index]())
    return found


def differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Turn by turn."""
    return [a - b for a, b in zip(one, other, strict=True)]


def bare_environment() -> dict[str, str]:
    """Nothing of wtrain, nothing that changes how Python starts."""
    names = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONSTARTUP")
    env = {key: value for key, value in os.environ.items() if not key.startswith("WTRAIN_")}
    for name in names:
        env.pop(name, None)
    return {**env, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def supervised_environment(slot_dir: str) -> dict[str, str]:
    """What a supervised training gets, as far as its own speed is concerned."""
    return {
        **bare_environment(),
        "PYTHONPATH": str(INJECT),
        "WTRAIN_SLOT_DIR": slot_dir,
        "WTRAIN_ATTEMPT_DIR": slot_dir,
        "WTRAIN_ATTEMPT": "1",
        "WTRAIN_RUN_ID": "bench",
    }


def last_line(argv: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> str:
    """Of a program's standard output; it must end well."""
    done = subprocess.run(argv, env=dict(env), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv[:3]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


def room() -> str | None:
    """Where heartbeat slots are made."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
