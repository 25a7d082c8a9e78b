"""A training that writes 100 MB/s: does it slow down, and does any of it get lost?

    python scripts/bench/pump.py [--runs 3] [--seconds 5] [--rate 100]

The same writer into a file, alone and under wtrain, in turn; and as fast as it can. Everything
must arrive at our own standard output, and the captured file must hold the end of it.
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
block = [line % 0]
size, written, number, longest = 0, 0, 0, 0.0
begin = time.monotonic()
total = int(rate * seconds) if rate else int(seconds * 400e6)
while written < total:
    data = b"".join(line % (number + i) for i in range(700))
    number += 700
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
with open(sys.argv[3], "w") as file:
    json.dump({"seconds": time.monotonic() - begin, "bytes": written, "longest": longest}, file)
"""
CAP_BYTES = 64 * 1024 * 1024


def rows(runs: int, seconds: float, rate: float) -> list[Row]:
    """Rates of the writer, with and without us, and what became of the bytes."""
    found = []
    for wanted, name in ((rate, f"a writer of {rate:.0f} MB/s"), (0.0, "a writer at full speed")):
        longest: list[float] = []
        lost: list[int] = []

        def with_us(wanted: float = wanted, longest: Any = longest, lost: Any = lost) -> float:
            said = _under_wtrain(wanted, seconds)
            longest.append(said["longest"])
            lost.append(said["lost"])
            return said["rate"]

        ours, alone = in_turn(runs, with_us, lambda wanted=wanted: _alone(wanted, seconds))
        note = (
            f"alone {statistics.median(alone):.0f} MB/s; longest write {max(longest) * 1000:.0f} "
            f"ms; bytes lost: {sum(lost)}"
        )
        found.append(Row(f"{name}, under wtrain", ours, "MB/s", note=note))
    return found


def _alone(rate: float, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "wb") as out:
        command = [sys.executable, "-c", WRITER, str(rate), str(seconds), f"{place}/said"]
        subprocess.run(command, stdout=out, env=bare_environment(), check=True)
        said = json.loads(Path(f"{place}/said").read_text())
        return float(said["bytes"] / said["seconds"] / 1e6)


def _under_wtrain(rate: float, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "wb") as out:
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        script = Path(place) / "writer.py"
        script.write_text(WRITER)
        writer = [sys.executable, str(script), str(rate), str(seconds), f"{place}/said"]
        command = [WTRAIN, "run", "--", *writer]
        done = subprocess.run(
            command, cwd=place, stdout=out, stderr=subprocess.PIPE, env=env, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        said = json.loads(Path(f"{place}/said").read_text())
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
            "rate": said["bytes"] / said["seconds"] / 1e6,
            "longest": said["longest"],
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
