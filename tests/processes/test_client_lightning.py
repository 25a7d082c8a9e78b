"""The client inside Lightning's Trainer, by both names: progress, saves, resuming, requests."""

from __future__ import annotations

import json
import struct
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_samples import look
from tests.client_runs import Training, answered, plain_environment, run_script
from watchdog_train.client import layout
from watchdog_train.store.slots import read_slots

NAMES = ("lightning.pytorch", "pytorch_lightning")
HOOK = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch_lightning"}

if find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)


BASE = """
import argparse, hashlib, importlib, json, logging, os, sys, warnings
warnings.simplefilter("ignore")
import torch
NAME = os.environ.get("LIGHTNING", "lightning.pytorch")
pl = importlib.import_module(NAME)
for name in (NAME, NAME.split(".")[0], "lightning.fabric", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)

def words():
    from watchdog_train.client import slot
    return list(slot.words[:40])

class Module(pl.LightningModule):
    def __init__(self, **more):
        super().__init__()
        self.save_hyperparameters(more)
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
        self.first = None
    def loss(self, batch): return self.layer(batch).pow(2).mean()
    def on_train_start(self): self.first = self.trainer.global_step
    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss
    def validation_step(self, batch, index): self.log("val_loss", self.loss(batch))
    def test_step(self, batch, index): self.log("test_loss", self.loss(batch))
    def configure_optimizers(self): return torch.optim.Adam(self.parameters(), lr=0.1)

def loader(n=16, size=4): return torch.utils.data.DataLoader(
    torch.linspace(0, 1, n * 4).reshape(n, 4), batch_size=size)

def trainer(root="out", **more):
    arguments = dict(max_epochs=2, accelerator="cpu", devices=1, logger=False,
        default_root_dir=root, enable_progress_bar=False, enable_model_summary=False)
    arguments.update(more)
    return pl.Trainer(**arguments)

def digest(module):
    data = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    return hashlib.sha256(data).hexdigest()
"""


def of(name: str) -> dict[str, str]:
    """Environment that chooses the package; skips where it is not installed."""
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    return {"LIGHTNING": name}


SAME = """
class Noisy(Module):
    def training_step(self, batch, index):
        return super().training_step(torch.nn.functional.dropout(batch), index)
torch.manual_seed(0)
shuffled = torch.utils.data.DataLoader(torch.rand(16, 4), batch_size=4, shuffle=True)
every = pl.callbacks.ModelCheckpoint(dirpath="out", every_n_train_steps=3, save_top_k=-1)
m = Noisy()
t = trainer(callbacks=[every], max_epochs=3)
t.fit(m, shuffled, loader())
loss = float(t.callback_metrics["train_loss"])
names = sorted(type(callback).__name__ for callback in t.callbacks)
kept = torch.load("out/epoch=1-step=6.ckpt", weights_only=False)
print(json.dumps([loss, digest(m), sorted(os.listdir("out")), names, sorted(kept["callbacks"]),
    torch.rand(1).item()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_gives_the_same_bits_with_and_without_us(training: Training, name: str) -> None:
    """Loss, weights, files, callbacks, what is in a checkpoint and in the output are equal."""
    with_us = training.run(BASE + SAME, env=of(name))
    alone = training.root / "alone"
    alone.mkdir()
    without = run_script(alone, BASE + SAME, env=plain_environment() | of(name))
    assert without.returncode == 0, without.stderr
    assert (with_us.stdout, with_us.stderr) == (without.stdout, without.stderr)


SEEN = """
from watchdog_train.client.hooks import lightning_steps
lightning_steps._LOOK_EVERY_NS = 0
seen = {"train": [], "val": [], "save": [], "test": []}
class Look(pl.Callback):
    def on_train_batch_start(self, *_): seen["train"].append(words()[17])
    def on_validation_batch_start(self, *_): seen["val"].append(words()[17])
    def on_test_batch_start(self, *_): seen["test"].append(words()[17])
class Saved(Module):
    def on_save_checkpoint(self, checkpoint): seen["save"].append(words()[17])
m = Saved()
t = trainer(callbacks=[Look()], logger=pl.loggers.CSVLogger("logs"), log_every_n_steps=1)
t.fit(m, loader(), loader())
after, loss = words(), float(t.callback_metrics["train_loss"])
t.save_checkpoint("weights.ckpt", weights_only=True)
t.test(m, loader(), verbose=False)
print(json.dumps([after, seen, words()[17], loss]))
"""


@pytest.mark.parametrize("name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.slow)])
def test_progress_phases_and_saves_are_seen(training: Training, name: str) -> None:
    """global_step, totals, loss and phases are in the slot; each save is recorded once."""
    words, seen, at_end, loss = training.json(BASE + SEEN, env=of(name))
    assert words[layout.W_FRAMEWORK_STEP] == 9
    assert words[layout.W_OPTIMIZER_STEPS] == words[layout.W_TOTAL_STEPS] == 8
    assert words[layout.W_TRAIN_ORDINAL] == 1
    assert words[layout.W_SAMPLES_PER_S] > 0
    assert words[layout.W_SAVES_BEGUN] == words[layout.W_SAVES_ENDED] >= 2
    assert words[layout.W_HOOKS_FAILED] == words[layout.W_CAN_BE_ASKED] == 0
    assert words[layout.W_PHASE] == at_end == layout.PHASE_FINISHING
    assert seen["train"][0] == layout.PHASE_FIRST_STEP
    assert set(seen["train"][1:]) == {layout.PHASE_TRAIN}
    assert set(seen["val"]) == set(seen["test"]) == {layout.PHASE_EVAL}
    assert set(seen["save"]) == {layout.PHASE_CHECKPOINT}
    (reading,) = read_slots(training.slot_dir).readings or (None,)
    assert reading is None, "the slot goes with its process"
    note = training.note()
    assert note["hooks"][HOOK[name]] == "armed"
    assert note["notes"] == []
    kept = training.root / "logs" / "lightning_logs" / "version_0" / "checkpoints"
    assert note["output_dirs"] == [str(kept)]
    first, second = training.saves()
    assert first.path == str(kept / "epoch=0-step=4.ckpt")
    assert (first.format, first.step, first.ordinal) == ("lightning", 4, 1)
    assert (first.output_dir, first.home) == (str(kept), str(training.root / "out"))
    found = Path(second.path).stat()
    assert second.files == {"epoch=1-step=8.ckpt": (found.st_size, found.st_mtime_ns)}
    told = [(item.format, item.step) for item in (*look(kept), *look(training.root))]
    assert told == [("lightning", 8), ("torch", 8)]
    logged = struct.unpack("=d", struct.pack("=Q", words[layout.W_LOSS]))[0]
    assert logged == pytest.approx(loss)


COUNTED = """
class ByHand(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def configure_optimizers(self):
        one, two = (torch.optim.SGD([p], lr=0.1) for p in self.parameters())
        return one, two
    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True: yield torch.ones(4)
told = {}
def run(what, t, m, data):
    t.fit(m, data)
    told[what] = [t.global_step, *(words()[n] for n in (10, 16, 34))]
no = dict(enable_checkpointing=False)
run("by hand", trainer(**no), ByHand(), loader())
run("accumulated", trainer(accumulate_grad_batches=3, **no), Module(), loader(20, 2))
run("max_steps", trainer(max_epochs=-1, max_steps=5, **no), Module(), loader())
run("shorter", trainer(max_epochs=9, max_steps=5, **no), Module(), loader())
again = trainer(max_epochs=1, **no)
run("first", again, Module(), loader())
again.fit_loop.max_epochs = 3
run("goes on", again, again.lightning_module, loader())
t = trainer(max_epochs=None, max_time={"seconds": 0}, **no)
run("no end", t, Module(), torch.utils.data.DataLoader(Endless(), batch_size=2))
run("overridden", trainer(limit_train_batches=2, **no), Module(), loader())
try:
    run("fails", trainer(**no), Module(), None)
except Exception as error:
    told["fails"] = [type(error).__name__ != "", words()[17] != 10, words()[31], words()[34]]
print(json.dumps(told))
"""


@pytest.mark.slow
def test_steps_are_counted_as_lightning_does(training: Training) -> None:
    """By hand, accumulated, twice in one Trainer: its own global_step, and a total where known."""
    told = training.json(BASE + COUNTED)
    # global_step, the step's word (one more), total (0: unknown), which fit of the process
    assert told.pop("no end")[2:] == [0, 7]
    assert told == {
        "by hand": [16, 17, 0, 1], "accumulated": [8, 9, 8, 2], "max_steps": [5, 6, 5, 3],
        "shorter": [5, 6, 5, 4], "first": [4, 5, 4, 5], "goes on": [12, 13, 12, 6],
        "overridden": [4, 5, 4, 8], "fails": [True, True, 0, 9],
    }  # fmt: skip


RESUME = """
first = []
for root, given, managed, epochs in json.loads(sys.argv[1]):
    t, m = trainer(root, max_epochs=epochs, enable_checkpointing=False), Module()
    if managed: t.ckpt_path = managed
    t.validate(m, loader(), verbose=False)
    t.fit(m, loader(), **({"ckpt_path": given} if given else {}))
    first.append([m.first, digest(m)])
    t.test(m, loader(), verbose=False)
print(json.dumps([first, words()]))
"""


KEPT = """
keep = lambda: [pl.callbacks.ModelCheckpoint(save_top_k=-1)]
trainer("out", callbacks=keep()).fit(Module(), loader())
trainer("odd", callbacks=keep()).fit(Module(a=argparse.Namespace(x=1)), loader())
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of eight; with plain hyperparameters, and with those of a class."""
    root = tmp_path_factory.mktemp("checkpoints")
    done = run_script(root, BASE + KEPT, env=plain_environment())
    assert done.returncode == 0, done.stderr
    return root


Fit = tuple[str, str | None, str | None, int]


def resumed(
    training: Training, checkpoints: Path, fits: list[Fit], *, name: str = "out", **order: Any
) -> tuple[list[tuple[int, str]], list[int]]:
    path = checkpoints / name / "checkpoints" / "epoch=1-step=8.ckpt"
    at = {"path": path, "step": 8, "output_dir": str(training.root / "out"), "ordinal": 1}
    training.resumes("lightning", **at | order)
    first, words = training.json(BASE + RESUME, json.dumps(fits))
    return [(step, digest) for step, digest in first], words


def test_only_the_fit_it_came_from_is_resumed(training: Training, checkpoints: Path) -> None:
    """The order names a home and which fit it was: that one, once; its end has the same bits."""
    fits: list[Fit] = [("other", None, None, 4), ("out", None, None, 4), ("out", None, None, 4)]
    first, words = resumed(training, checkpoints, fits, ordinal=2)
    assert [step for step, _ in first] == [0, 8, 0]
    assert first[1][1] == first[2][1], "resumed after two epochs, it ends as if never interrupted"
    assert words[layout.W_RESUMED_STEP] == 9
    assert any("resumed from" in note for note in training.note()["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["another home", "argument", "attribute"])
def test_what_is_not_meant_is_not_resumed(training: Training, checkpoints: Path, how: str) -> None:
    """A fit of the right number that writes elsewhere, and one for which the script names a
    checkpoint itself: that one is used. The note says so.
    """
    own = str(checkpoints / "out" / "checkpoints" / "epoch=0-step=4.ckpt")
    fit, step, why = {
        "another home": (("other", None, None, 2), 0, "another directory"),
        "argument": (("out", own, None, 3), 4, "the script says itself"),
        "attribute": (("out", None, own, 3), 4, "the script says itself"),
    }[how]
    first, words = resumed(training, checkpoints, [fit])
    assert (first[0][0], words[layout.W_RESUMED_STEP]) == (step, 0)
    assert any(why in note for note in training.note()["notes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded", "mode", "why"),
    [
        (True, 0o600, None),
        (False, 0o600, "not known to be written by this run"),
        (True, 0o602, "others may write to it"),
    ],
)
def test_hyperparameters_of_a_class(
    training: Training, checkpoints: Path, recorded: bool, mode: int, why: str | None
) -> None:
    """Loaded whole where only this run can have written it; else it is told, and begins anew."""
    name = "epoch=1-step=8.ckpt"
    copy = training.root / name
    copy.write_bytes((checkpoints / "odd" / "checkpoints" / name).read_bytes())
    copy.chmod(mode)
    release = tuple(map(int, version("lightning").split(".")[:2]))
    if release < (2, 4):
        why = "this Lightning cannot load that with this torch"
    elif release < (2, 6):
        why = None
    fits: list[Fit] = [("out", None, None, 3)]
    first, words = resumed(training, checkpoints, fits, path=str(copy), recorded=recorded)
    told = [note for note in training.note()["notes"] if "argparse.Namespace" in note]
    if why is None:
        assert (first[0][0], words[layout.W_RESUMED_STEP]) == (8, 9)
        assert release < (2, 6) or "weights_only=False" in told[0]
    else:
        assert (first[0][0], words[layout.W_RESUMED_STEP]) == (0, 0)
        assert told[0].startswith("not resumed: ")
        assert why in told[0]


ASKED = """
validations, waits = [], [3, 6]
def ask(word):
    print(word, flush=True)
    sys.stdin.readline()
class Wait(pl.Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step in waits:
            waits.remove(trainer.global_step)
            ask("now")
    def on_validation_start(self, trainer, *_):
        validations.append(trainer.global_step)
        if trainer.global_step == 4: ask("validating")
t = trainer(max_epochs=1000, min_epochs=5, callbacks=[Wait()], accumulate_grad_batches=2)
t.fit(Module(), loader(32), loader())
names = sorted(os.listdir("out/checkpoints"))
print("ended", t.global_step, names, validations, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.slow)])
def test_requests_are_acted_on_at_the_next_step(training: Training, name: str) -> None:
    """A save goes on, one asked for in a validation comes after it, a stop saves and ends."""
    with training.control() as page, training.waiting(BASE + ASKED, "now", env=of(name)) as process:
        assert training.reading().can_save
        assert training.reading().can_stop
        page.request_save()
        assert answered(process) == "validating\n"
        saving = page.request_save()
        assert answered(process) == "now\n"
        stopping = page.request_stop()
        line = answered(process)
        # Four steps an epoch, of two batches each; no validation but the one of the epoch.
        # ModelCheckpoint adds none for the epoch that was not finished.
        files = ["epoch=0-step=4.ckpt", *(f"wtrain-step={step}.ckpt" for step in (4, 5, 7))]
        assert line == f"ended 7 {files} [0, 4]\n"
        reading = training.reading()
        assert (reading.save_answered, reading.stop_answered) == (saving, stopping)
        assert (reading.step, reading.phase) == (7, "finishing")
    asked = [save for save in training.saves() if "wtrain" in save.path]
    assert [save.step for save in asked] == [4, 5, 7]
    whole = {item.path for item in look(training.root, level="full") if item.whole}
    assert {save.path for save in asked} <= whole


FAILING = """
class Full(Module):
    def on_save_checkpoint(self, checkpoint): raise OSError(28, "No space left on device")
class Wait(pl.Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 1:
            print("now", flush=True)
            sys.stdin.readline()
t = trainer(callbacks=[Wait()], enable_checkpointing=False)
t.fit(Full(), loader())
print("ended", t.global_step)
"""


@pytest.mark.slow
def test_a_save_that_fails_does_not_end_the_training(training: Training) -> None:
    """A full disk in a save that wtrain has asked for is noted; the fit goes on."""
    with training.control() as page, training.waiting(BASE + FAILING, "now") as process:
        page.request_save()
        assert answered(process) == "ended 8\n"
    assert any("No space left" in note for note in training.note()["notes"])


EXPLICIT = """
import pickle
integration = importlib.import_module("watchdog_train.integrations." + NAME.split(".")[0])
t = trainer(callbacks=[integration.WatchdogCallback()], enable_checkpointing=False)
t.fit(Module(), loader(), loader())
copied = pickle.loads(pickle.dumps(integration.WatchdogCallback()))
print(json.dumps([t.global_step, type(copied).__name__,
    *(words()[n] for n in (10, 16, 17, 34, 31))]))
"""
OUTSIDE = """
from watchdog_train.client.libraries import HOOKS
for name in ("lightning.pytorch", "pytorch_lightning"):
    HOOKS[name] = (*HOOKS[name][:2], (9, 0), (9, 1), ())
"""


@pytest.mark.slow
def test_the_explicit_callback(training: Training) -> None:
    """It counts nothing twice beside the hook, does the same without it, and nothing outside."""
    env = plain_environment() | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    without = run_script(training.root, BASE + EXPLICIT, env=env)
    assert without.stdout.splitlines()[-1] == '[8, "Callback", 0, 0, 0, 0, 0]', without.stderr
    expected = [8, "Callback", 9, 8, layout.PHASE_FINISHING, 1, 0]
    assert training.json(BASE + EXPLICIT) == expected
    assert training.json(OUTSIDE + BASE + EXPLICIT) == expected
    statuses = [note["hooks"]["lightning"] for note in training.all_notes()]
    assert sum("is outside 9.0 to below 9.1" in status for status in statuses) == 1


CUT = """
from fsspec.implementations import local
def saving(how):
    print(how, flush=True)
    sys.stdin.read()
write, commit = local.LocalFileOpener.write, local.LocalFileOpener.commit
def half(self, data):
    if "step=8" not in str(self.path): return write(self, data)
    write(self, data[:len(data) // 2])
    self.f.flush()
    saving("written by half")
def whole(self):
    if "step=8" in str(self.path): saving("not yet moved")
    return commit(self)
if sys.argv[1] == "half": local.LocalFileOpener.write = half
if sys.argv[1] == "whole": local.LocalFileOpener.commit = whole
m = Module()
t = trainer(max_epochs=3, callbacks=[pl.callbacks.ModelCheckpoint(save_top_k=-1)])
t.fit(m, loader())
print(json.dumps([m.first, digest(m)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["half", "whole"])
def test_killed_in_the_middle_of_a_save(training: Training, how: str, tmp_path: Path) -> None:
    """What a save leaves that SIGKILL has cut is not chosen; the one before is, to the same end."""
    moves = tuple(map(int, version("lightning").split(".")[:2])) >= (2, 4)
    if how == "whole" and not moves:
        pytest.skip("Lightning before 2.4 writes a checkpoint in its place: nothing is moved")
    process = training.start(BASE + CUT, {"TMPDIR": str(tmp_path)}, (how,))
    assert process.stdout.readline().strip() in ("written by half", "not yet moved")
    process.kill()
    process.communicate(timeout=10)
    found = look(training.root / "out", saves=training.saves())
    torn = [] if moves else [8]
    assert [item.step for item in found if not item.whole] == torn
    newest = next(item for item in found if item.whole)
    assert (newest.step, newest.whole, newest.ordinal) == (4, True, 1)
    at = {"step": newest.step, "output_dir": newest.home, "ordinal": newest.ordinal}
    training.resumes("lightning", newest.path, **at)
    first, resumed = training.json(BASE + CUT, "")
    training.resume = None
    assert (first, training.json(BASE + CUT, "")) == (4, [0, resumed])
