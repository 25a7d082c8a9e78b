"""What the client costs: a beat, the hooks of a step, a Python start; medians of several runs.

    python scripts/bench/beat.py [--runs 7]

Processor time, not the clock, so that a busy machine disturbs little. A whole training step is
measured by steps.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from measured import (
    Row,
    bare_environment,
    differences,
    in_turn,
    last_line,
    machine,
    room,
    supervised_environment,
    table,
)

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
torch = types.SimpleNamespace(autograd=types.SimpleNamespace(backward=nothing, grad=nothing))
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


def rows(runs: int) -> list[Row]:
    """Nanoseconds of a beat, microseconds of the hooks of a step, milliseconds of a start."""
    with tempfile.TemporaryDirectory(dir=room()) as slots:
        bare, supervised = bare_environment(), supervised_environment(slots)
        beats = [float(last_line([sys.executable, "-c", BEAT], supervised)) for _ in range(runs)]
        hooks = [
            float(last_line([sys.executable, "-c", HOOKS], supervised)) / 1000 for _ in range(runs)
        ]
        with_us, alone = in_turn(runs * 10, lambda: _start(supervised), lambda: _start(bare))
    note = f"{sorted(alone)[len(alone) // 2]:.0f} ms without us"
    return [
        Row("one beat, in a loop", beats, "ns", 300.0),
        Row("the hooks of one step, around nothing", hooks, "us", 1.2),
        Row(
            "a Python start more, torch not imported", differences(with_us, alone), "ms", 3.0, note
        ),
    ]


def _start(env: dict[str, str]) -> float:
    process = subprocess.Popen([sys.executable, "-c", ""], env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (usage.ru_utime + usage.ru_stime) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs)))


if __name__ == "__main__":
    main()
