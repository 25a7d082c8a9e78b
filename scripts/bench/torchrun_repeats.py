"""Repeats faults of one rank under torchrun and counts the restarts that brought training home.

    python scripts/bench/torchrun_repeats.py [--repeats 20] [--cases hang,crash,save] [--fast]
    python scripts/bench/torchrun_repeats.py --own [--repeats 10]

Two gloo ranks train; in the first attempt rank 1 sleeps (hang), rank 1 is killed (crash), or rank 0
is killed while it writes a checkpoint of 96 MB (save). A repeat counts when the second attempt has
gone on from the newest whole checkpoint to the last step and nothing is left. --fast takes the
short limits of the tests instead of the default settings.

--own: no wtrain; torchrun --max-restarts=2 by itself, with and without the variable that wtrain
sets, in turns. It counts when the first of its restarts has reached the last step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from measured import BIN, REPOSITORY
from whole_runs import ended, environment

SHARED_STORE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
RUN_S = 240.0
OWN_S = 90.0
STEPS = 40

PROGRAM = """\
import os, random, signal, sys, threading, time
import torch
import torch.distributed as dist

fault, resume = sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None
first = resume is None and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 1)
ballast = torch.rand(24_000_000) if fault == "save" else torch.rand(24)
begin = 0
if resume:
    saved = torch.load(resume)
    model.load_state_dict(saved["model"])
    begin = saved["step"]
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


for step in range(begin, STEPS):
    if first and step == 25 and rank == 1 and fault == "hang":
        time.sleep(10_000)
    if first and step == 25 and rank == 1 and fault == "crash":
        die()
    optimizer.zero_grad()
    parallel(torch.ones(2, 8) * step / 10).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    if rank == 0 and (step + 1) % 10 == 0:
        os.makedirs("checkpoints", exist_ok=True)
        if first and fault == "save" and step + 1 == 30:
            threading.Timer(random.uniform(0.0, 0.06), die).start()
        content = {"model": model.state_dict(), "step": step + 1, "ballast": ballast}
        torch.save(content, f"checkpoints/step-{step + 1:06d}.pt")
dist.barrier()
if rank == 0:
    print(f"finished step={STEPS} begin={begin}", flush=True)
dist.destroy_process_group()
""".replace("STEPS", str(STEPS))


class Repeat(NamedTuple):
    """One run under wtrain."""

    ok: bool
    why: str
    silent_s: float | None
    """How long the ranks had been silent when the stall was declared; None for a crash."""
    relaunched_s: float
    """From the verdict, or from the exit of torchrun, to the next launch: evidence included."""
    total_s: float
    partial: int
    """Checkpoints that were passed over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--cases", default="hang,crash,save")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--keep", type=Path, help="copy run directories of failed repeats here")
    args = parser.parse_args()
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {metadata.version('torch')}, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if args.own:
        own(args.repeats or 10)
        return
    failed = 0
    for case in args.cases.split(","):
        failed += repeated(case, args.repeats or 20, fast=args.fast, keep=args.keep)
    sys.exit(1 if failed else 0)


def repeated(case: str, repeats: int, *, fast: bool, keep: Path | None) -> int:
    """All repeats of one case; how many failed."""
    found = []
    for number in range(repeats):
        one = once(case, fast=fast, keep=keep)
        found.append(one)
        if not one.ok:
            print(f"{case} {number + 1} FAILED: {one.why}", flush=True)
    good = [one for one in found if one.ok]
    print(f"{case}: {len(good)} of {len(found)} restarts brought it home", end="")
    if good:
        silent = [one.silent_s for one in good if one.silent_s is not None]
        if silent:
            print(f"; silent when declared {spread(silent)}", end="")
        print(f"; to the next launch {spread([one.relaunched_s for one in good])}", end="")
        print(f"; whole run {spread([one.total_s for one in good])}", end="")
        print(
            f"; partial checkpoints passed over in {sum(bool(one.partial) for one in good)}", end=""
        )
    print(flush=True)
    return len(found) - len(good)


def once(case: str, *, fast: bool, keep: Path | None) -> Repeat:
    """One run from its first attempt to its end."""
    with tempfile.TemporaryDirectory(prefix="wtrain-bench-") as name:
        place = Path(name)
        (place / "train.py").write_text(PROGRAM)
        options = ["--resume-arg", "--resume {checkpoint}"]
        if fast:
            sys.path.insert(0, str(REPOSITORY))
            from tests.support import write_fast_config

            options += ["--config", str(write_fast_config(place))]
        launch = [str(BIN / "torchrun"), "--nproc-per-node=2", "train.py", case]
        began = time.monotonic()
        code, words = ended(
            [str(BIN / "wtrain"), "run", *options, "--", *launch], place, environment(place), RUN_S
        )
        total_s = time.monotonic() - began
        try:
            return judged(case, place, code, words, total_s)
        finally:
            if keep is not None and code != 0:
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copytree(place, keep / place.name, symlinks=True)


def judged(case: str, place: Path, code: int | None, words: str, total_s: float) -> Repeat:
    """What became of a run, by its event log."""
    logs = list(place.glob("wtrain-runs/*/events.jsonl"))
    lines = logs[0].read_bytes().splitlines() if logs else []
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    launched = [event for event in events if event["type"] == "attempt_launched"]
    gone = [event for event in events if event["type"] == "tree_gone"]
    stalls = [event for event in events if event["type"] == "stall_declared"]
    exits = [event for event in events if event["type"] == "attempt_exited"]
    resumed = [event for event in events if event["type"] == "resume_verified" and event["ok"]]
    partial = sum(event["type"] == "checkpoint_rejected" for event in events)
    verdicts = [event["mono"] for event in (stalls or exits)[:1]]
    ok = (
        code == 0
        and len(launched) == 2
        and len(gone) == 2
        and len(resumed) == 1
        and f"finished step={STEPS}" in words
        and (case == "hang") == bool(stalls)
    )
    tail = " | ".join(words.splitlines()[-3:])
    relaunched_s = launched[1]["mono"] - verdicts[0] if len(launched) > 1 and verdicts else 0.0
    return Repeat(
        ok=ok,
        why="" if ok else f"exit {code}, {len(launched)} attempts, {len(stalls)} stalls: {tail}",
        silent_s=stalls[0]["age_s"] if stalls else None,
        relaunched_s=relaunched_s,
        total_s=total_s,
        partial=partial,
    )


def own(repeats: int) -> None:
    """torchrun's own restart of a killed rank, in turns with and without the variable."""
    found: dict[str, list[tuple[bool, float]]] = {"without": [], "with": []}
    for _ in range(repeats):
        for name, values in found.items():
            with tempfile.TemporaryDirectory(prefix="wtrain-bench-") as folder:
                place = Path(folder)
                (place / "train.py").write_text(PROGRAM)
                env = environment(place)
                env.pop(SHARED_STORE_OFF, None)
                if name == "with":
                    env[SHARED_STORE_OFF] = "1"
                launch = [str(BIN / "torchrun"), "--nproc-per-node=2", "--max-restarts=2"]
                began = time.monotonic()
                code, words = ended([*launch, "train.py", "crash"], place, env, OWN_S)
                failures = words.count("failed (exitcode")
                home = code == 0 and failures == 1 and f"finished step={STEPS}" in words
                values.append((home, time.monotonic() - began))
                print(
                    f"{name} {SHARED_STORE_OFF}=1: exit {code}, {failures} failed rounds, "
                    f"{values[-1][1]:.0f} s",
                    flush=True,
                )
    for name, values in found.items():
        good = [seconds for home, seconds in values if home]
        print(f"{name} it: {len(good)} of {len(values)} came back at the first restart", end="")
        print(f", {spread(good)}" if good else "", flush=True)


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"median {statistics.median(values):.1f} s ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    main()
