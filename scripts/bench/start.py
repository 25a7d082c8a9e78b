"""How long the commands take that people and scripts ask often, beside a bare Python.

    python scripts/bench/start.py [turns]

Interleaved turns, because the absolute numbers are the machine's and the differences are ours.
`status`, `ps` read a run directory made from a golden event log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measured import REPOSITORY, WTRAIN, Row, machine, table

GOLDEN = REPOSITORY / "tests" / "golden" / "supervisor_died.events.jsonl"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "wtrain --version": [WTRAIN, "--version"],
    "wtrain status": [WTRAIN, "status"],
    "wtrain status --json": [WTRAIN, "status", "--json"],
    "wtrain ps -a": [WTRAIN, "ps", "-a"],
}
BUDGET_MS = {"wtrain --version": 20.0, "wtrain status": 90.0}


def rows(turns: int) -> list[Row]:
    """Milliseconds by the clock; the processor's are what a busy machine keeps."""
    with tempfile.TemporaryDirectory() as place:
        measured = measure(Path(place), turns)
    return [
        Row(name, taken, "ms", BUDGET_MS.get(name), f"CPU {sum(cpu) / len(cpu):.0f} ms")
        for name, (taken, cpu) in measured.items()
    ]


def main() -> None:
    print(machine())
    print(table(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 21)))


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
