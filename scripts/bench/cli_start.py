"""How long the commands take that people and scripts ask often: medians of several runs.

    python scripts/bench/cli_start.py [runs]

Runs the installed `wtrain` on a run directory made from a golden event log, in turns with a bare
Python, because the absolute numbers are the machine's and the differences are ours.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "supervisor_died.events.jsonl"
BUDGET_MS = {"wtrain --version": 120.0, "wtrain status": 120.0}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    wtrain = str(Path(sys.executable).parent / "wtrain")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "wtrain --version": [wtrain, "--version"],
        "wtrain status": [wtrain, "status"],
        "wtrain status --json": [wtrain, "status", "--json"],
        "wtrain ps -a": [wtrain, "ps", "-a"],
    }
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "wtrain-runs" / "sft-20261121-231005-a3f9"
        (run / "attempts" / "0001").mkdir(parents=True)
        (run / "events.jsonl").write_bytes(GOLDEN.read_bytes())
        (run / "attempts" / "0001" / "output.log").write_text("{'loss': 2.1}\n" * 1000)
        env = {**os.environ, "XDG_STATE_HOME": str(Path(place) / "state")}
        # Without compiled modules every start would measure the compiler.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env = {name: value for name, value in env.items() if not name.startswith("WTRAIN_")}
        taken: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(runs + 1):
            for name, command in commands.items():
                before = os.times()
                subprocess.run(command, cwd=place, env=env, capture_output=True, check=False)
                after = os.times()
                if turn:  # the first turn warms the caches
                    taken[name].append(1000.0 * (after.elapsed - before.elapsed))
                    used = after.children_user + after.children_system
                    cpu[name].append(
                        1000.0 * (used - before.children_user - before.children_system)
                    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"median (fastest to slowest) of {runs} runs; CPU time is what a busy machine keeps")
    for name, values in taken.items():
        budget = f"  budget {BUDGET_MS[name]:.0f} ms" if name in BUDGET_MS else ""
        spread = f"({min(values):.0f} to {max(values):.0f})"
        mean_ms = statistics.mean(cpu[name])  # the clock ticks of 10 ms average out
        line = f"{name:<22}{statistics.median(values):6.0f} ms {spread:<14}cpu {mean_ms:4.0f} ms"
        print(line + budget)


if __name__ == "__main__":
    main()
