"""What a training step costs more under wtrain: plain, compiled, Trainer, Lightning.

    python scripts/bench/steps.py [--runs 7] [--only plain ...]

Every training is started with and without us in turn; CPU time of the process, not the clock.
Steps of one process differ by more than our hooks cost, so this shows an upper bound; the hooks
alone are measured by beat.py, and that is what the budget of 2 microseconds is about.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable

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

COMMON = """
import json, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
now = time.process_time_ns
def tell(step_ns, **more):
    print(json.dumps({"step_us": step_ns / 1000, **more}))
"""

PLAIN = """
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(4000, 64), batch_size=None)
best = []
for _ in range(3):
    begin = now()
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    best.append((now() - begin) / 4000)
tell(min(best))
"""

COMPILED = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(4000, 64), batch_size=None)

@torch.compile(backend="eager")
def step(batch):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss

for batch in list(loader)[:20]:
    step(batch)
best = []
for _ in range(3):
    begin = now()
    for batch in loader:
        step(batch)
    best.append((now() - begin) / 4000)
counters = torch._dynamo.utils.counters
tell(min(best), graph_breaks=sum(counters["graph_break"].values()),
     graphs=counters["stats"].get("unique_graphs", 0))
"""

TRAINER = """
import tempfile
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 1)
    def forward(self, x, labels=None):
        out = self.linear(x).squeeze(-1)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i): return {"x": torch.full((64,), i / 4000), "labels": torch.tensor(0.5)}

seen = {}
class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (100, 500, 900):
            seen[state.global_step] = now()

args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=901, logging_steps=100,
    per_device_train_batch_size=4, save_strategy="no", report_to=[], use_cpu=True,
    disable_tqdm=True)
Trainer(model=Model(), args=args, train_dataset=Data(), callbacks=[Clock()]).train()
tell(min(seen[500] - seen[100], seen[900] - seen[500]) / 400)
"""

LIGHTNING = """
import logging, tempfile, warnings
warnings.simplefilter("ignore")
import lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 1)
    def training_step(self, batch, index):
        return self.linear(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

seen = {}
class Clock(lightning.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step in (100, 500, 900):
            seen[trainer.global_step] = now()

data = torch.utils.data.TensorDataset(torch.randn(4000, 64))
loader = torch.utils.data.DataLoader(data, batch_size=4)
trainer = lightning.Trainer(max_steps=901, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    default_root_dir=tempfile.mkdtemp(), callbacks=[Clock()])
trainer.fit(Module(), loader)
tell(min(seen[500] - seen[100], seen[900] - seen[500]) / 400)
"""

KINDS = {
    "plain": PLAIN,
    "compiled": COMPILED,
    "Trainer": TRAINER,
    "Lightning": LIGHTNING,
}


def rows(runs: int, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Row]:
    """One row for each kind of training."""
    return [_row(kind, runs) for kind in kinds]


def _row(kind: str, runs: int) -> Row:
    extra: dict[str, set[tuple[int, int]]] = {"with": set(), "without": set()}

    def act(name: str) -> Callable[[], float]:
        def once() -> float:
            with tempfile.TemporaryDirectory(dir=room()) as slots:
                env = supervised_environment(slots) if name == "with" else bare_environment()
                said = json.loads(last_line([sys.executable, "-c", COMMON + KINDS[kind]], env))
            extra[name].add((said.get("graph_breaks", 0), said.get("graphs", 0)))
            return float(said["step_us"])

        return once

    with_us, without = in_turn(runs, act("with"), act("without"))
    base = statistics.median(without)
    ratio = statistics.median([a / b for a, b in zip(with_us, without, strict=True)])
    note = f"{ratio:.3f} times {base:.0f} us without us"
    if kind == "compiled":
        equal = extra["with"] == extra["without"]
        breaks, graphs = next(iter(extra["with"]))
        note += f"; {breaks} graph breaks, {graphs} graphs, {'equal' if equal else 'NOT EQUAL'}"
    return Row(f"a step more, {kind}", differences(with_us, without), "us", note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs, tuple(options.only))))


if __name__ == "__main__":
    main()
