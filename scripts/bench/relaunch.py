"""From a quiet hang to the next attempt, in a real run with the default settings.

    python scripts/bench/relaunch.py [--runs 3]

A deadlock of DataLoader workers, as tests/programs plants it: how long the silence lasted when it
was declared a stall, and how long it took from there to the next child, evidence included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measured import REPOSITORY, WTRAIN, Row, bare_environment, machine, table

PROGRAM = REPOSITORY / "tests" / "programs" / "loader_fork_lock.py"


def rows(runs: int) -> list[Row]:
    """Seconds of each part."""
    found = [_once() for _ in range(runs)]
    parts = {name: [one[name] for one in found] for name in found[0]}
    return [
        Row("quiet hang to declared stall, proven", parts["declared"], "s", 20.0),
        Row("declared stall to evidence on disk", parts["evidence"], "s", 5.0),
        Row("declared stall to the next child, without the grace", parts["without"], "s", 6.0),
        Row("declared stall to the next child", parts["relaunched"], "s"),
    ]


def _once() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        command = [WTRAIN, "run", "--", sys.executable, str(PROGRAM)]
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise SystemExit(f"the run has failed:\n{done.stderr}")
        (log,) = Path(place).glob("wtrain-runs/*-*/events.jsonl")
        events = [json.loads(line) for line in log.read_text().splitlines()]

    def first(kind: str, after: float = 0.0, **wanted: object) -> float:
        return next(
            float(event["mono"])
            for event in events
            if event["type"] == kind
            and event["mono"] >= after
            and all(event.get(key) == value for key, value in wanted.items())
        )

    stall = next(event for event in events if event["type"] == "stall_declared")
    declared = float(stall["mono"])
    asked = first("signalling", declared, stage="terminate")
    # The grace is over at the next stage, or earlier when everybody has ended.
    over = min(
        float(event["mono"])
        for event in events
        if event["mono"] > asked and event["type"] in ("signalling", "tree_gone")
    )
    relaunched = first("attempt_launched", declared) - declared
    return {
        "declared": float(stall["age_s"]),
        "evidence": first("evidence_collected", declared) - declared,
        "relaunched": relaunched,
        "without": relaunched - (over - asked),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs)))


if __name__ == "__main__":
    main()
