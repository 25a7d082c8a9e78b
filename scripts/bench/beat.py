"""What the client costs: a beat, a hooked training step, a Python start; medians of several runs.

Usage: python scripts/bench/beat.py [--runs 7]. The step needs torch. Prints JSON lines. Processor
time, not wall time, and with and without us in turn, so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

INJECT = Path(__file__).resolve().parents[2] / "watchdog_train" / "client" / "inject"

BEAT = """
import time
import watchdog_train
beat = watchdog_train.beat
beat()
best = []
for _ in range(5):
    begin = time.process_time_ns()
    for _ in range(200000):
        beat()
    best.append((time.process_time_ns() - begin) / 200000)
print(min(best))
"""

HOOKS = """
import sys, time, types
import watchdog_train
watchdog_train.beat()
from watchdog_train.client.hooks import torch as hooks

def nothing(*args):
    return 1

class Bare:
    __next__ = nothing

class Iterator:
    __next__ = nothing

found = []
loader = types.SimpleNamespace(_BaseDataLoaderIter=Iterator)
optimizer = types.SimpleNamespace(register_optimizer_step_post_hook=found.append)
torch = types.SimpleNamespace(autograd=types.SimpleNamespace(backward=nothing))
sys.modules["torch.utils.data.dataloader"] = loader
sys.modules["torch.optim.optimizer"] = optimizer
for arm in (hooks._steps, hooks._backward, hooks._batches):
    arm(torch)

def cost(act):
    best = []
    for _ in range(5):
        begin = time.process_time_ns()
        for _ in range(50000):
            act()
        best.append((time.process_time_ns() - begin) / 50000)
    return min(best)

hooked, bare = Iterator(), Bare()
step_done = found[0]
print(cost(lambda: (next(hooked), torch.autograd.backward(1), step_done(1, (), {})))
      - cost(lambda: (next(bare), nothing(1))))
"""

STEP = """
import time
import torch
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.0)
loader = torch.utils.data.DataLoader(torch.ones(20000, 1), batch_size=None)
best = []
for _ in range(3):
    begin = time.process_time_ns()
    for batch in loader:
        optimizer.zero_grad()
        (parameter * batch).backward()
        optimizer.step()
    best.append((time.process_time_ns() - begin) / 20000)
print(min(best))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as room:
        bare = {name: text for name, text in os.environ.items() if not name.startswith("WTRAIN_")}
        bare.pop("PYTHONPATH", None)
        supervised = bare | {
            "PYTHONPATH": str(INJECT),
            "WTRAIN_SLOT_DIR": room,
            "WTRAIN_RUN_ID": "bench",
        }
        beats = [printed(BEAT, supervised) for _ in range(runs)]
        report("beat, in a loop", "ns", beats, None)
        hooks = [printed(HOOKS, supervised) for _ in range(runs)]
        report("the hooks of one step, around nothing", "ns", hooks, None)
        steps = [(printed(STEP, supervised), printed(STEP, bare)) for _ in range(runs)]
        report("training step (batch, backward, optimizer)", "ns", *zip(*steps, strict=True))
        starts = [(started(supervised), started(bare)) for _ in range(runs * 10)]
        report("python start", "ms", *zip(*starts, strict=True))


def printed(script: str, env: dict[str, str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def started(env: dict[str, str]) -> float:
    process = subprocess.Popen([sys.executable, "-c", ""], env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (usage.ru_utime + usage.ru_stime) * 1000


def report(
    what: str,
    unit: str,
    with_us: tuple[float, ...] | list[float],
    without: tuple[float, ...] | None,
) -> None:
    line: dict[str, object] = {
        "what": what,
        "unit": unit,
        "runs": len(with_us),
        "with": round(statistics.median(with_us), 2),
    }
    if without is not None:
        line["without"] = round(statistics.median(without), 2)
        differences = [one - other for one, other in zip(with_us, without, strict=True)]
        line["difference"] = round(statistics.median(differences), 2)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
