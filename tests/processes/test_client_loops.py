"""Plain loops of every make: each is seen by its words, and none of its numbers changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client_runs import Training, plain_environment, run_script
from watchdog_train.client import layout

LOOPS = """
import hashlib, json, sys, threading
import torch

torch.set_num_threads(1)
STEPS = 4

def start():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

def batch():
    return torch.rand(3, 4)

def loss_of(model):
    return model(batch()).pow(2).mean()

def lbfgs(model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    data = batch()
    def closure():
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        return loss
    for _ in range(STEPS):
        optimizer.step(closure)

def by_hand(model):
    for _ in range(10):
        model.zero_grad()
        loss_of(model).backward()
        with torch.no_grad():
            for weights in model.parameters():
                weights -= 0.1 * weights.grad

def gradients_only(model):
    weights = list(model.parameters())
    for _ in range(10):
        gradients = torch.autograd.grad(loss_of(model), weights)
        with torch.no_grad():
            for each, gradient in zip(weights, gradients):
                each -= 0.1 * gradient

def two_optimizers(model):
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters())
    for _ in range(STEPS):
        first.zero_grad(); second.zero_grad()
        loss_of(model).backward()
        first.step(); second.step()

def accumulated(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            (loss_of(model) / 3).backward()
        optimizer.step()

def mixed(model):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def foreach(model):
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for _ in range(STEPS):
        optimizer.zero_grad(); loss_of(model).backward(); optimizer.step()

def fused(model):
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad(); loss_of(model).backward(); optimizer.step()

class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
    def step(self, closure=None):
        for group in self.param_groups:
            for weights in group["params"]:
                weights.data.add_(weights.grad, alpha=-group["lr"])

def overridden(model):
    optimizer = Own(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad(); loss_of(model).backward(); optimizer.step()

def in_a_thread(model):
    thread = threading.Thread(target=foreach, args=(model,))
    thread.start()
    thread.join()

MAKES = (
    lbfgs, by_hand, gradients_only, two_optimizers, accumulated, mixed, foreach, fused, overridden,
    in_a_thread,
)

def words():
    if sys.argv[1] != "watched":
        return [0] * 64
    from watchdog_train.client import slot
    return list(slot.words[:64])

results, seen = {}, {}
for make in MAKES:
    model = start()
    before = words()
    make(model)
    after = words()
    content = b"".join(v.detach().numpy().tobytes() for v in model.parameters())
    results[make.__name__] = [hashlib.sha256(content).hexdigest(), torch.rand(1).item()]
    seen[make.__name__] = [new - old for new, old in zip(after, before)]
    seen[make.__name__][17] = after[17]
print(json.dumps([results, seen]))
"""

SEEN = {
    # make: (optimizer steps, backward passes)
    "lbfgs": (4, 12),
    "by_hand": (0, 10),
    "gradients_only": (0, 10),
    "two_optimizers": (8, 4),
    "accumulated": (4, 12),
    "mixed": (4, 4),
    "foreach": (4, 4),
    "fused": (4, 4),
    "overridden": (4, 4),
    "in_a_thread": (4, 4),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, dict]:
    """Results without us, results with us, and the words that moved."""
    root: Path = tmp_path_factory.mktemp("loops")
    plain = run_script(root, LOOPS, "alone", env=plain_environment())
    assert plain.returncode == 0, plain.stderr
    with_us, seen = Training(root).json(LOOPS, "watched")
    return json.loads(plain.stdout.splitlines()[-1])[0], with_us, seen


@pytest.mark.parametrize("make", SEEN)
def test_a_loop_of_this_make(both: tuple[dict, dict, dict], make: str) -> None:
    """Weights and the random state after it are bit-equal; steps and backward passes count."""
    without, with_us, seen = both
    assert with_us[make] == without[make]
    steps, backwards = SEEN[make]
    words = seen[make]
    assert words[layout.W_OPTIMIZER_STEPS] == steps
    if make == "lbfgs":
        assert words[layout.W_MICRO_BATCHES] >= steps
    else:
        assert words[layout.W_MICRO_BATCHES] == backwards
    assert words[layout.W_PHASE] == layout.PHASE_TRAIN
    assert words[layout.W_HOOKS_FAILED] == 0


KERAS = """
__version__ = "3.15.1"

class callbacks:
    class CallbackList:
        def on_train_begin(self, logs=None): pass
        def on_train_batch_end(self, batch, logs=None): pass
        def on_test_begin(self, logs=None): pass
        def on_test_batch_end(self, batch, logs=None): pass
        def on_test_end(self, logs=None): pass
        on_predict_begin = on_predict_batch_end = on_predict_end = on_test_begin
"""
"""Of the shape of Keras 3, which is not installed here."""

FIT = """
import json
import keras
from watchdog_train.client import layout, slot
told, phases = keras.callbacks.CallbackList(), []
told.on_train_begin()
for step in range(5):
    phases.append(slot.words[layout.W_PHASE])
    told.on_train_batch_end(step, logs=None)
told.on_test_begin()
told.on_test_batch_end(0)
phases.append(slot.words[layout.W_PHASE])
told.on_test_end()
phases.append(slot.words[layout.W_PHASE])
counted = [slot.words[layout.W_OPTIMIZER_STEPS], slot.words[layout.W_BATCHES]]
print(json.dumps([phases, counted]))
"""


def test_keras_tells_steps_and_evaluations_by_its_callbacks(tmp_path: Path) -> None:
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text(KERAS, "utf-8")
    training = Training(tmp_path)
    found, counted = training.json(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{FIT}")
    train = [layout.PHASE_FIRST_STEP, *[layout.PHASE_TRAIN] * 4]
    assert found == [*train, layout.PHASE_EVAL, layout.PHASE_TRAIN]
    assert counted == [5, 1]
