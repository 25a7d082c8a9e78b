"""How long a start takes: of a command alone, of one under wtrain, and of a look at a run.

    python scripts/bench/start.py [turns]

Prints medians of interleaved turns, because the absolute numbers are the machine's and the
differences are ours. `status`, `ps` read a run directory made from a golden event log.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "supervisor_died.events.jsonl"
WTRAIN = str(Path(sys.executable).parent / "wtrain")
COMMANDS = {
    "true": ["true"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "wtrain --version": [WTRAIN, "--version"],
    "wtrain status": [WTRAIN, "status"],
    "wtrain status --json": [WTRAIN, "status", "--json"],
    "wtrain ps -a": [WTRAIN, "ps", "-a"],
    "wtrain run -- true": [WTRAIN, "run", "--runs-dir", "other-runs", "--", "true"],
}
BUDGET_MS = {"wtrain --version": 120, "wtrain status": 120, "wtrain run -- true": 250}
"""Of the run: over `true` alone."""


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    with tempfile.TemporaryDirectory() as place:
        measured = measure(Path(place), turns)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"median (fastest to slowest) of {turns} turns; CPU time is what a busy machine keeps")
    for name, (taken_ms, cpu_ms) in measured.items():
        budget = f"  budget {BUDGET_MS[name]} ms" if name in BUDGET_MS else ""
        spread = f"({min(taken_ms):.0f} to {max(taken_ms):.0f})"
        mean_ms = statistics.mean(cpu_ms)  # the clock ticks of 10 ms average out
        middle_ms = statistics.median(taken_ms)
        print(f"{name:<22}{middle_ms:6.0f} ms {spread:<14}cpu {mean_ms:4.0f} ms{budget}")


def measure(place: Path, turns: int) -> dict[str, tuple[list[float], list[float]]]:
    """Wall and CPU milliseconds of every command, in turns; the first turn warms the caches."""
    run = place / "wtrain-runs" / "sft-20261121-231005-a3f9"
    (run / "attempts" / "0001").mkdir(parents=True)
    shutil.copy(GOLDEN, run / "events.jsonl")
    (run / "attempts" / "0001" / "output.log").write_text("{'loss': 2.1}\n" * 1000)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WTRAIN_")}
    env["XDG_STATE_HOME"] = str(place / "state")
    # Without compiled modules every start would measure the compiler.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    measured: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in COMMANDS}
    for turn in range(turns + 1):
        for name, command in COMMANDS.items():
            before, began = os.times(), time.perf_counter()
            subprocess.run(command, cwd=place, env=env, capture_output=True, check=False)
            after, ended = os.times(), time.perf_counter()
            if turn:
                taken_ms, cpu_ms = measured[name]
                taken_ms.append(1000.0 * (ended - began))
                used = after.children_user + after.children_system
                cpu_ms.append(1000.0 * (used - before.children_user - before.children_system))
    return measured


if __name__ == "__main__":
    main()
