"""From the end of an attempt to the next launch, in real runs with the default settings.

    python scripts/bench/relaunch.py [--runs 5] [--case crash|kill|hang]

Three cases: one process raises an exception; kill -9 of one of two ranks of torchrun; a deadlock of
DataLoader workers, as tests/programs plants it. Printed are the median of each part, and the time
line of the last run of each case: what the time between the end and the launch goes into.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from measured import BIN, REPOSITORY, WTRAIN, Row, bare_environment, machine, table

PROGRAMS = REPOSITORY / "tests" / "programs"
MIND_S = 300.0
Events = list[dict[str, Any]]
SHOWN = ("why", "code", "signal", "stage", "how_known", "delay_s", "path")


def rows(case: str, runs: int) -> list[Row]:
    """Seconds of each part."""
    measure, budgets = CASES[case]
    found = [measure() for _ in range(runs)]
    return [
        Row(f"{case}: {name}", [one[name] for one in found], "s", budgets.get(name))
        for name in found[0]
    ]


def _crash() -> dict[str, float]:
    events = _run(str(PROGRAMS / "crash_at_step.py"), "exception")
    return _after_end(events, _first(events, "attempt_exited"))


def _kill() -> dict[str, float]:
    """One of two ranks of torchrun; its launcher ends the other, then itself."""
    killed = 0.0

    def kill(run: psutil.Process, place: Path) -> None:
        nonlocal killed
        saved = place / "checkpoints" / "step-000020.pt"
        until = time.monotonic() + MIND_S
        while not saved.exists() and time.monotonic() < until:
            time.sleep(0.05)
        for each in run.children(recursive=True):
            if each.environ().get("RANK") == "1":
                each.kill()
                killed = time.monotonic()
                return
        raise SystemExit("no rank was seen")

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    events = _run(*torchrun, str(PROGRAMS / "rank_faults.py"), "none", act=kill)
    ends = _after_end(events, _first(events, "attempt_exited"))
    launched = _first(events, "attempt_launched", killed)["mono"]
    return {
        "kill -9 of a rank to the end of the launcher": launched
        - killed
        - ends["end to the next launch"],
        **ends,
        "kill -9 of a rank to the next launch": launched - killed,
    }


def _hang() -> dict[str, float]:
    events = _run(str(PROGRAMS / "loader_fork_lock.py"))
    stall = _first(events, "stall_declared")
    declared = float(stall["mono"])
    ends = _after_end(events, _first(events, "tree_gone", declared))
    return {
        "silence until the stall was declared": float(stall["age_s"]),
        "declared to evidence on disk": _first(events, "evidence_collected", declared)["mono"]
        - declared,
        "declared to the next launch": _first(events, "attempt_launched", declared)["mono"]
        - declared,
        **ends,
    }


def _after_end(events: Events, end: dict[str, Any]) -> dict[str, float]:
    launched = _first(events, "attempt_launched", end["mono"])
    for one in events:
        if end["mono"] - 1.0 <= one["mono"] <= launched["mono"]:
            told = {key: one[key] for key in SHOWN if one.get(key) is not None}
            print(f"  {one['mono'] - end['mono']:7.3f}  {one['type']:20} {str(told)[:110]}")
    print()
    return {"end to the next launch": launched["mono"] - end["mono"]}


def _first(events: Events, kind: str, after: float = 0.0) -> dict[str, Any]:
    return next(one for one in events if one["type"] == kind and one["mono"] >= after)


def _events(log: Path) -> Events:
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def _run(*program: str, act: Callable[[psutil.Process, Path], None] = lambda *_: None) -> Events:
    with tempfile.TemporaryDirectory() as place:
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
        command = [WTRAIN, "run", "--resume-arg", "auto", "--", sys.executable, *program]
        with open(f"{place}/told", "w+") as told:
            run = subprocess.Popen(command, cwd=place, env=env, stdout=told, stderr=told)
            act(psutil.Process(run.pid), Path(place))
            if run.wait(MIND_S):
                told.seek(0)
                raise SystemExit(f"the run has failed:\n{told.read()}")
        (log,) = Path(place).glob("wtrain-runs/*-*/events.jsonl")
        return _events(log)


CASES: dict[str, tuple[Callable[[], dict[str, float]], dict[str, float]]] = {
    "crash": (_crash, {"end to the next launch": 2.0}),
    "kill": (_kill, {"kill -9 of a rank to the next launch": 2.0}),
    "hang": (
        _hang,
        {
            "silence until the stall was declared": 20.0,
            "declared to evidence on disk": 5.0,
            "end to the next launch": 2.0,
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    options = parser.parse_args()
    print(machine())
    found = [row for case in options.case or CASES for row in rows(case, options.runs)]
    print(table(found))


if __name__ == "__main__":
    main()
