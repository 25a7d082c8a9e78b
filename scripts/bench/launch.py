"""What `wtrain run` adds to a command that does nothing, and to a torchrun launch of two ranks.

python scripts/bench/launch.py [--runs 15] [--torchrun-runs 3]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable

from measured import BIN, WTRAIN, Row, bare_environment, differences, in_turn, machine, table

RANK = "import torch.distributed as d; d.init_process_group('gloo'); d.barrier()\n"


def rows(runs: int, torchrun_runs: int) -> list[Row]:
    """Milliseconds over the same command without us."""
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "rank.py"]
    return [
        _row("wtrain run -- true, over true", ["true"], runs, 150.0),
        _row("wtrain run -- torchrun, over torchrun", torchrun, torchrun_runs, None),
    ]


def _row(what: str, command: list[str], runs: int, budget_ms: float | None) -> Row:
    with tempfile.TemporaryDirectory() as place:
        with open(f"{place}/rank.py", "w") as file:
            file.write(RANK)
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}

        def act(argv: list[str]) -> Callable[[], float]:
            def once() -> float:
                began = time.perf_counter()
                subprocess.run(argv, cwd=place, env=env, capture_output=True, check=True)
                return 1000.0 * (time.perf_counter() - began)

            return once

        ours = act([WTRAIN, "run", "--", *command])
        ours()  # the first one compiles modules
        with_us, alone = in_turn(runs, ours, act(command))
    note = f"{sorted(alone)[len(alone) // 2]:.0f} ms without us"
    return Row(what, differences(with_us, alone), "ms", budget_ms, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--torchrun-runs", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs, options.torchrun_runs)))


if __name__ == "__main__":
    main()
