"""One long healthy run under the default settings: does wtrain leave it alone?

    python scripts/bench/healthy_night.py [--minutes 30]

tests/programs/night.py: a Trainer with uneven steps, slow batches, evaluations whose metric waits,
and saves. Prints one line of Markdown for docs/detection.md; exits 1 after a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from measured import REPOSITORY, WTRAIN, bare_environment, machine

PROGRAM = REPOSITORY / "tests" / "programs" / "night.py"
LATE_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="wtrain-night-") as folder:
        place = Path(folder)
        env = {
            **bare_environment(),
            "NIGHT_S": str(options.minutes * 60),
            "XDG_STATE_HOME": str(place / ".state"),
            "XDG_CONFIG_HOME": str(place / ".config"),
        }
        began = time.monotonic()
        with (place / "said.txt").open("wb") as said:
            done = subprocess.run(
                [WTRAIN, "run", "--", sys.executable, str(PROGRAM)],
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=options.minutes * 60 + LATE_S,
                check=False,
            )
        took_s = time.monotonic() - began
        log = place / "wtrain-runs" / "latest" / "events.jsonl"
        events = [json.loads(line) for line in log.read_bytes().splitlines()]
        words = (place / "said.txt").read_text("utf-8", "replace")
    counted = Counter(event["type"] for event in events)
    phases = Counter(event["phase"] for event in events if event["type"] == "phase_changed")
    steps = next((w for w in reversed(words.splitlines()) if w.startswith("finished")), "no end")
    print(
        f"| Trainer, uneven steps | {took_s / 60:.0f} min | {steps} | "
        f"{phases['eval']} evaluations | "
        f"{counted['suspected']} suspected | {counted['stall_declared']} stalls | "
        f"exit {done.returncode} | load {os.getloadavg()[0]:.1f} at the end |"
    )
    for event in events:
        if event["type"] in ("suspected", "suspicion_ended", "stall_declared", "noticed"):
            print(f"  {event['mono'] - events[0]['mono']:.0f} s {event['type']}: {event['why']}")
    healthy = done.returncode == 0 and not counted["stall_declared"]
    sys.exit(0 if healthy and counted["attempt_launched"] == 1 else 1)


if __name__ == "__main__":
    main()
