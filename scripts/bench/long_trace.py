"""Replays a long trace: `python scripts/bench/long_trace.py [LINES] [RANKS]`; 10 million, one rank.

Writes a trace of a healthy training (steps of about two seconds, an evaluation every hour, an odd
line here and there) into a temporary folder, runs `wtrain replay` on it once and prints what that
took: CPU time, wall time, and the most memory that it ever held.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINES, RANKS = 10_000_000, 1
SEED = 4711
EVAL_EVERY_S, EVAL_S = 3600, 300
ODD_EVERY = 100_000


def main() -> int:
    """Writes, replays, prints; 1 when the replay failed."""
    given = [int(text) for text in sys.argv[1:]]
    lines, ranks = (*given, *(LINES, RANKS)[len(given) :])
    with tempfile.TemporaryDirectory(prefix="long-trace-") as folder:
        path = Path(folder) / "trace.jsonl"
        write(path, lines, ranks)
        print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
        print(f"{lines:,} lines of {ranks} rank(s), {path.stat().st_size / 1e9:.2f} GB", flush=True)
        command = [sys.executable, "-m", "watchdog_train", "replay", str(path)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        print(
            f"replay: {cpu_s:.0f} s of CPU, {cpu_s / lines * 1e6:.0f} us a line; {wall_s:.0f} s on "
            f"the clock; at most {used.ru_maxrss / 1024:.0f} MiB; exit code {done.returncode}"
        )
        print("\n".join((done.stdout + done.stderr).splitlines()[:8]))
        return int(done.returncode != 0)


def write(path: Path, lines: int, ranks: int) -> None:
    """A trace as a supervisor would have written it, made of text: nothing here is measured."""
    chance = random.Random(SEED)
    step, cpu_s = 0, 0.0
    with path.open("w", encoding="ascii") as file:
        file.write('{"v":1,"kind":"trace","poll_s":1.0}\n')
        for at in range(lines):
            evaluates = at % EVAL_EVERY_S >= EVAL_EVERY_S - EVAL_S
            cpu_s += 0.9 + 0.4 * chance.random()
            step += not evaluates and chance.random() < 0.5
            phase = "eval" if evaluates else "train"
            beats = step + at % EVAL_EVERY_S if evaluates else step
            said = ",".join(
                f'"{rank}":{{"step":{step},"phase":"{phase}","beats":{beats + 9 * at}}}'
                for rank in range(ranks)
            )
            if at % ODD_EVERY == ODD_EVERY - 1:
                file.write('{"t":NaN,"ranks":\n')
            file.write(
                f'{{"t":{at}.02,"ranks":{{{said}}},"cpu_s":{cpu_s:.3f},"io_bytes":{at * 4096},'
                f'"tcp_bytes":0,"processes":3,"log_bytes":{step * 60},"gpu_util":null,'
                f'"states":{{"S":2,"R":1}}}}\n'
            )


if __name__ == "__main__":
    sys.exit(main())
