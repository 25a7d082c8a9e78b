"""Loops over accelerate: bit for bit the same with us, by hooks alone and by explicit calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training, answered, plain_environment, run_script
from tests.support import REPOSITORY
from watchdog_train.client import layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

pytest.importorskip("accelerate")


def example() -> str:
    """The loop of the page about libraries."""
    page = (REPOSITORY / "docs" / "frameworks.md").read_text("utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (text,) = [block for block in found if "WatchdogLoop" in block]
    return str(text)


BASE = """
import hashlib, json, os, sys
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
torch.set_num_threads(1)
set_seed(3)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return torch.full((4,), index / 16)

def prepared(**more):
    accelerator = Accelerator(cpu=True, **more)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    # Of its own: each new iterator draws a number, and a resumed epoch has one iterator more.
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, generator=torch.Generator())
    return (accelerator, *accelerator.prepare(model, optimizer, loader))

def digest(model):
    return hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

def files():
    return sorted(os.path.join(folder, name)
        for folder, _, names in os.walk("checkpoints") for name in names)
"""

BY_HOOKS = """
accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=2)
for epoch in range(2):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("checkpoints/step_%d" % epoch)
accelerator.load_state("checkpoints/step_0")
for batch in loader:
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps([digest(model), torch.rand(1).item(), files()]))
"""

COMPILED = """
import hashlib, json
import torch
torch.set_num_threads(1)
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(lambda batch: model(batch).pow(2).mean(), backend="aot_eager")
for _ in range(6):
    optimizer.zero_grad()
    step(torch.rand(3, 4)).backward()
    optimizer.step()
data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(json.dumps([hashlib.sha256(data).hexdigest(), torch.rand(1).item()]))
"""


def alone(root: Path, script: str, *arguments: str) -> Any:
    """What the same script says without us, in a directory of its own."""
    root.mkdir()
    env = plain_environment() | {"PYTHONPATH": str(REPOSITORY)}
    done = run_script(root, script, *arguments, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("script", [BASE + BY_HOOKS, COMPILED], ids=["accelerate", "compiled"])
def test_a_loop_gives_the_same_bits_with_and_without_us(training: Training, script: str) -> None:
    """Weights, files and the random state after it are equal; steps were counted all the same."""
    watched = script + "from watchdog_train.client import slot\nprint(list(slot.words[:64]))\n"
    done = training.run(watched)
    assert done.returncode == 0, done.stderr
    result, words = map(json.loads, done.stdout.splitlines()[-2:])
    assert result == alone(training.root / "alone", script)
    assert words[layout.W_OPTIMIZER_STEPS] == (6 if script is COMPILED else 16)
    assert words[layout.W_HOOKS_FAILED] == 0, training.note()


TRAINS = """
accelerator, model, optimizer, loader = prepared()
total = int(sys.argv[1])
if len(sys.argv) > 2:
    backward, seen = accelerator.backward, []
    def waiting(loss):
        seen.append(loss)
        if str(len(seen)) in sys.argv[2:]:
            print("now", flush=True)
            sys.stdin.readline()
        backward(loss)
    accelerator.backward = waiting
ended = train(accelerator, model, optimizer, loader, total)
print(json.dumps([ended, digest(model), files()]), flush=True)
"""
EXPLICIT = BASE + example() + TRAINS
WORDS = """
from watchdog_train.client import slot
print(json.dumps([ended, digest(model), files(), list(slot.words[:40])]))
"""


def test_explicit_calls(training: Training) -> None:
    """The same bits as without us; resumed it ends with them too; step and total are known."""
    ended, digest, files = alone(training.root / "alone", EXPLICIT, "12")
    assert (ended, {Path(name).parent.name for name in files}) == (12, {"step_5", "step_10"})
    *told, words = training.json(EXPLICIT + WORDS, "12")
    assert told == [ended, digest, files]
    assert (words[layout.W_FRAMEWORK_STEP], words[layout.W_TOTAL_STEPS]) == (13, 12)
    assert words[layout.W_PHASE] == layout.PHASE_FINISHING
    assert words[layout.W_CAN_BE_ASKED] == 0
    saves = [(save.format, save.step, save.path) for save in training.saves()]
    newest = str(training.root / "checkpoints" / "step_10")
    assert (len(saves), saves[-1]) == (2, ("accelerate", 10, newest))
    training.attempt = 2
    training.resumes("accelerate", newest, via="script", step=10)
    env = {layout.ENV_RESUME_FROM: newest}
    *told, words = training.json(EXPLICIT + WORDS, "12", env=env)
    assert told == [ended, digest, files]
    assert words[layout.W_RESUMED_STEP] == 11
    assert words[layout.W_OPTIMIZER_STEPS] == 2


def test_a_save_and_a_stop_that_are_asked_for(training: Training) -> None:
    """A save goes on, a stop saves and ends; each leaves the whole state of that step."""
    first = training.waiting(EXPLICIT, "now", arguments=("1000", "3", "7"))
    with training.control() as page, first as process:
        assert training.reading().can_save
        assert training.reading().can_stop
        page.request_save()
        assert answered(process) == "now\n"
        page.request_stop()
        ended, _, files = json.loads(answered(process))
    assert ended == 7
    assert {Path(name).parent.name for name in files} == {"step_3", "step_5", "step_7"}
    assert [save.step for save in training.saves()] == [3, 5, 7]
