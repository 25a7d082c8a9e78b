"""How long the commands take that people and scripts ask often, and what a run adds to its command.

    python scripts/bench/start.py [--turns 21] [--torchrun-turns 3]

Interleaved turns, because the absolute numbers are the machine's and the differences are ours.
`status`, `ps` read a run directory made from a golden event log. The runs are of `true` and of a
torchrun launch of two ranks; their rows are over the same command without us.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measured import BIN, REPOSITORY, WTRAIN, Row, bare_environment, differences, machine, table

GOLDEN = REPOSITORY / "tests" / "golden" / "supervisor_died.events.jsonl"
ASKED = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "wtrain --version": [WTRAIN, "--version"],
    "wtrain status": [WTRAIN, "status"],
    "wtrain status --json": [WTRAIN, "status", "--json"],
    "wtrain ps -a": [WTRAIN, "ps", "-a"],
}
BUDGET_MS = {"wtrain --version": 20.0, "wtrain status": 90.0, "true": 150.0}
RANK = "import torch.distributed as d; d.init_process_group('gloo'); d.barrier()\n"
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "rank.py"]


def rows(turns: int, torchrun_turns: int) -> list[Row]:
    """Milliseconds by the clock; the processor's are what a busy machine keeps."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place, "wtrain-runs", "sft-20261121-231005-a3f9", "attempts", "0001")
        run.mkdir(parents=True)
        shutil.copy(GOLDEN, run.parents[1] / "events.jsonl")
        (run / "output.log").write_text("{'loss': 2.1}\n" * 1000)
        found = [
            Row(name, taken, "ms", BUDGET_MS.get(name), f"CPU {cpu:.0f} ms")
            for name, (taken, cpu) in _measure(place, ASKED, turns).items()
        ]
    for name, command, count in (("true", ["true"], turns), ("torchrun", TORCHRUN, torchrun_turns)):
        with tempfile.TemporaryDirectory() as place:
            Path(place, "rank.py").write_text(RANK)
            both = {"ours": [WTRAIN, "run", "--", *command], "alone": command}
            (ours, cpu), (alone, _) = _measure(place, both, count).values()
        note = f"CPU {cpu:.0f} ms; {statistics.median(alone):.0f} ms without us"
        what, budget = f"wtrain run -- {name}, over {name}", BUDGET_MS.get(name)
        found.append(Row(what, differences(ours, alone), "ms", budget, note))
    return found


def _measure(
    place: str, commands: dict[str, list[str]], turns: int
) -> dict[str, tuple[list[float], float]]:
    """Wall milliseconds of every command, in turns, and the median of its CPU milliseconds."""
    env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(turns + 1):
        for name, command in commands.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, cwd=place, env=env, capture_output=True, check=False)
            taken_s, after = (
                time.perf_counter() - began,
                resource.getrusage(resource.RUSAGE_CHILDREN),
            )
            used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            measured[name].append((1000 * taken_s, 1000 * used_s))
    return {
        name: ([taken for taken, _ in each[1:]], statistics.median(used for _, used in each[1:]))
        for name, each in measured.items()  # the first turn warms the caches
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--torchrun-turns", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.turns, options.torchrun_turns)))


if __name__ == "__main__":
    main()
