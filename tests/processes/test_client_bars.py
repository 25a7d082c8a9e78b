"""How long a training is, by its progress bar: believed only where nothing speaks against it."""

from __future__ import annotations

from pathlib import Path

from tests.client_runs import Training

CASES = """
import functools, json, os, sys
import torch
import tqdm as tqdm_module
from watchdog_train.client import layout, slot
from watchdog_train.client.hooks import tqdm as bars

tqdm = functools.partial(tqdm_module.tqdm, file=open(os.devnull, "w"), mininterval=0, miniters=1)
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.0)
seen = []

def step():
    parameter.grad = torch.ones(1)
    optimizer.step()

def look():
    words = slot.words
    offset, total = words[layout.W_BAR_OFFSET], words[layout.W_BAR_TOTAL]
    done = words[layout.W_OPTIMIZER_STEPS] // (words[layout.W_BAR_EACH] or 1)
    seen.append((done + offset - 1, total) if offset else None)

def by_range():
    for i in tqdm(range(100)):
        step()
        if i == 50: look()

def by_hand():
    bar = tqdm(total=300)
    for i in range(100):
        step(); bar.update(1)
    look()

def goes_on():
    for i in tqdm(range(500, 900)):
        step()
        if i == 550: look()

def goes_on_by_initial():
    for i in tqdm(range(500, 900), initial=500, total=900):
        step()
        if i == 550: look()

def skips_what_is_done():
    slot.words[layout.W_RESUMED_STEP] = 41
    for i in tqdm(range(100)):
        if i < 40: continue
        step()
        if i == 80: look()

def counts_the_rest():
    slot.words[layout.W_RESUMED_STEP] = 41
    for i in tqdm(range(60)):
        step()
        if i == 50: look()

def mixed_precision_leaves_steps_out():
    for i in tqdm(range(1000)):
        if i not in (0, 1, 200, 400): step()
        if i == 900: look()

def epochs_of_a_loader():
    loader = torch.utils.data.DataLoader(torch.ones(40, 1), batch_size=2)
    for epoch in range(2):
        for batch in tqdm(loader):
            step()
        look()

def epochs_by_the_length_of_a_loader():
    loader = torch.utils.data.DataLoader(torch.ones(40, 1), batch_size=2)
    for epoch in range(2):
        bar = tqdm(total=len(loader))
        for batch in loader:
            step(); bar.update(1)
        look()
        bar.close()

def epochs_that_nothing_gives_away():
    for epoch in range(2):
        for i in tqdm(range(50)):
            step()
    look()

def a_bar_of_epochs():
    for epoch in tqdm(range(20)):
        for i in range(5):
            step()
    look()

def bars_in_a_bar():
    for epoch in tqdm(range(2)):
        for i in tqdm(range(50), leave=False):
            step()
        look()

def micro_batches():
    for i in tqdm(range(100)):
        if i % 2: step()
        if i == 90: look()

def two_optimizers():
    for i in tqdm(range(100)):
        step(); step()
        if i == 90: look()

def optimizers_that_take_turns():
    critic = torch.optim.SGD([parameter], lr=0.0)
    for i in tqdm(range(80)):
        for _ in range(5):
            parameter.grad = torch.ones(1)
            critic.step()
        step()
        if i == 50: look()

def epochs_of_optimizers_that_take_turns():
    critic = torch.optim.SGD([parameter], lr=0.0)
    loader = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)
    for epoch in tqdm(range(80)):
        for batch in loader:
            parameter.grad = torch.ones(1)
            critic.step()
            step()
    look()

def preparation():
    for i in tqdm(range(100)):
        if i == 90: look()

def a_second_stage():
    for i in range(30):
        step()
    for i in tqdm(range(100)):
        step()
        if i == 90: look()

def no_total():
    for i in tqdm(iter(range(100))):
        step()
        if i == 90: look()

case, found = None, {}
for case in sys.argv[1:]:
    bars._chosen, bars._over = None, False
    bars._watched.clear(); bars._samplers.clear(); seen.clear()
    bars._rounds.clear(); bars._optimizers.clear(); bars._listening = None
    for word in (layout.W_OPTIMIZER_STEPS, layout.W_RESUMED_STEP, layout.W_BAR_OFFSET,
                 layout.W_BAR_TOTAL, layout.W_BAR_EACH):
        slot.words[word] = 0
    globals()[case]()
    found[case] = list(seen)
print(json.dumps(found))
"""

BELIEVED: dict[str, list[tuple[int, int]]] = {
    "by_range": [(51, 100)],
    "by_hand": [(100, 300)],
    "goes_on": [(551, 900)],
    "goes_on_by_initial": [(551, 900)],
    "skips_what_is_done": [(81, 100)],
    "mixed_precision_leaves_steps_out": [(901, 1000)],
    "optimizers_that_take_turns": [(51, 80)],
}
UNKNOWN_ONCE = """
    counts_the_rest epochs_that_nothing_gives_away a_bar_of_epochs micro_batches two_optimizers
    epochs_of_optimizers_that_take_turns preparation a_second_stage no_total
"""
UNKNOWN_TWICE = "epochs_of_a_loader epochs_by_the_length_of_a_loader bars_in_a_bar"
UNKNOWN = {**dict.fromkeys(UNKNOWN_ONCE.split(), 1), **dict.fromkeys(UNKNOWN_TWICE.split(), 2)}


def test_a_bar_is_believed_where_nothing_speaks_against_it(tmp_path: Path) -> None:
    """The usual bars of a whole training are, and every other one leaves the length unknown."""
    found = Training(tmp_path).json(CASES, *BELIEVED, *UNKNOWN)
    for case, ((step, total),) in BELIEVED.items():
        ((seen, length),) = found[case]
        assert length == total, (case, found[case])
        assert abs(seen - step) <= 1, (case, found[case])  # the bar was drawn before this step
    for case, looks in UNKNOWN.items():
        assert found[case] == [None] * looks, (case, found[case])
