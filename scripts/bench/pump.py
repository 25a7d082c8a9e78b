"""A training that writes 100 MB/s: does it slow down, is any of it lost, and what does that cost?

    python scripts/bench/pump.py [--runs 3] [--seconds 5] [--rate 100]

The same writer into a file, alone and under wtrain, in turn; as fast as it can; into a pipe; and 45
lines a second. Everything must arrive at our own standard output, and the captured file must hold
the end of it. Processor times are those between the writer's first and last write.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measured import WTRAIN, Row, bare_environment, in_turn, machine, table

WRITER = """
import json, os, sys, time
rate, seconds = float(sys.argv[1]) * 1e6, float(sys.argv[2])
line = b"step %012d loss 0.123456 " + b"x" * 60 + b"\\n"
lines = int(sys.argv[3])
written, number, longest = 0, 0, 0.0

def used():
    pid, found = os.getppid(), []
    for _ in range(2):
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        pid = int(fields[1])
        found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found

time.sleep(1.0)
before_it, begin = used(), time.monotonic()
total = int(rate * seconds) if rate else int(seconds * 200e6)
while written < total:
    data = b"".join(line % (number + i) for i in range(lines))
    number += lines
    before = time.monotonic()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
    after = time.monotonic()
    longest = max(longest, after - before)
    written += len(data)
    if rate:
        ahead = begin + written / rate - after
        if ahead > 0:
            time.sleep(ahead)
with open(sys.argv[4], "w") as file:
    took = time.monotonic() - begin
    cpu = [100 * (now - before) / took for now, before in zip(used(), before_it)]
    json.dump({"seconds": took, "bytes": written, "longest": longest, "cpu": cpu}, file)
"""
CAP_BYTES = 64 * 1024 * 1024
BLOCK_LINES, LINE_BYTES = 700, 93


def rows(runs: int, seconds: float, rate: float) -> list[Row]:
    """Rates of the writer with and without us, what became of the bytes, our processor time."""
    found = []
    for name, wanted, lines, piped in (
        (f"a writer of {rate:.0f} MB/s", rate, BLOCK_LINES, False),
        ("a writer at full speed", 0.0, BLOCK_LINES, False),
        (f"a writer of {rate:.0f} MB/s into a pipe", rate, BLOCK_LINES, True),
        ("a writer of 45 lines/s", 45 * LINE_BYTES / 1e6, 1, False),
    ):
        argv, said = [str(wanted), str(seconds), str(lines)], list[dict[str, Any]]()

        def with_us(argv: Any = argv, piped: bool = piped, said: Any = said) -> float:
            said.append(_under_wtrain(argv, piped=piped))
            return float(said[-1]["rate"])

        ours, alone = in_turn(runs, with_us, lambda argv=argv: _alone(argv))
        longest_ms = 1000 * max(one["longest"] for one in said)
        note = (
            f"alone {statistics.median(alone):.3g} MB/s; longest write {longest_ms:.0f} ms; "
            f"bytes lost: {sum(one['lost'] for one in said)}"
        )
        found.append(Row(f"{name}, under wtrain", ours, "MB/s", note=note))
        budget = {rate: 10.0, 0.0: None}.get(wanted, 2.0)
        for which, who in enumerate(("keeper", "supervisor")):
            cpu = [one["cpu"][which] for one in said]
            found.append(Row(f"{name}: {who}", cpu, "% of a core", budget))
    return found


def _alone(argv: list[str]) -> float:
    with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "wb") as out:
        command = [sys.executable, "-c", WRITER, *argv, f"{place}/said"]
        subprocess.run(command, stdout=out, env=bare_environment(), check=True)
        said = json.loads(Path(f"{place}/said").read_text())
        return float(said["bytes"] / said["seconds"] / 1e6)


def _under_wtrain(argv: list[str], *, piped: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "wb") as out:
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        script = Path(place) / "writer.py"
        script.write_text(WRITER)
        command = [WTRAIN, "run", "--", sys.executable, str(script), *argv, f"{place}/said"]
        reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
        done = subprocess.run(
            command,
            cwd=place,
            stdout=reader.stdin if piped else out,
            stderr=subprocess.PIPE,
            env=env,
            check=False,
        )
        reader.communicate()
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        said: dict[str, Any] = json.loads(Path(f"{place}/said").read_text())
        (folder,) = Path(place).glob("wtrain-runs/*-*/attempts/0001")
        kept = b"".join(
            path.read_bytes()
            for path in (folder / "stdout.log.1", folder / "stdout.log")
            if path.exists()
        )
        shown = Path(f"{place}/out").read_bytes()
        if kept != shown[len(shown) - len(kept) :] or len(kept) < min(len(shown), CAP_BYTES // 2):
            raise SystemExit("the captured file does not hold the end of the output")
        return {
            **said,
            "rate": said["bytes"] / said["seconds"] / 1e6,
            "lost": said["bytes"] - len(shown),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs, options.seconds, options.rate)))


if __name__ == "__main__":
    main()
