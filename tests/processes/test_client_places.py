"""Milestones, hooks of libraries and their versions: what a process says about its way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training, plain_environment, run_script
from tests.support import REPOSITORY, wait_until
from watchdog_train.client import layout
from watchdog_train.core.notices.notes import Note
from watchdog_train.store.slots import read_note


def library(training: Training, name: str, text: str, version: str) -> None:
    """A stand-in for an installed library, of a version that we choose."""
    package = training.root / name
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n{text}")


def note_of(training: Training, pid: int) -> Note | None:
    return read_note(training.slot_dir, pid)


HANGING = """
import os, sys, time
sys.path.insert(0, os.getcwd())
import argparse
import wandb
parser = argparse.ArgumentParser()
parser.add_argument("--resume_from_checkpoint", default=None)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--resume-token", default="hunter2")
parser.parse_args([])
import watchdog_train
watchdog_train.mark("data is ready")
wandb.init()
"""
WAITING = """
import sys
def init():
    print("inside", flush=True)
    sys.stdin.readline()
def finish():
    pass
"""


def test_a_place_is_named_while_the_process_is_inside(training: Training) -> None:
    """What is open, what was passed, and the user's own mark are in the side file in time."""
    library(training, "wandb", WAITING, "0.31.0")
    with training.waiting(HANGING, "inside") as process:

        def inside() -> Note | None:
            note = note_of(training, process.pid)
            if note is None or not note.milestones:
                return None
            return note if note.milestones[-1].name == "wandb.init" else None

        note = wait_until(inside, 10, "the milestone is written down")
        names = [one.name for one in note.milestones]
        assert names == ["import wandb", "arguments parsed", "data is ready", "wandb.init"]
        assert [one.end is None for one in note.milestones] == [False, False, False, True]
        assert [one.mark for one in note.milestones] == [False, False, True, False]
        reading = training.reading()
        assert note.changes == reading.milestone
        assert (note.start, note.attempt) == (reading.start, 1)
        assert note.hooks == {"argparse": "armed", "wandb": "armed"}
        assert note.options == ("--resume_from_checkpoint {checkpoint}",)
    after = note_of(training, process.pid)
    assert after.milestones[-1].name == "exit"
    assert after.milestones[-2].end is not None


HOOKED = """
import os, sys
sys.path.insert(0, os.getcwd())
import wandb
from watchdog_train.client import slot, layout as L
init = getattr(wandb, "init", lambda: wandb.answer)
print(init(), hasattr(init, "__wrapped__"), slot.words[L.W_HOOKS_FAILED])
"""
OPTIONS = """
import argparse, json, sys
import torch
from watchdog_train.client import notes
parser = argparse.ArgumentParser()
add = parser.add_argument
add("--resume-from", type=str)
add("--resume", nargs="?", const=True)
add("--auto_resume", action="store_true")
add("--no-resume", action="store_false", dest="resume_it")
add("--resume-step", type=int)
add("--resume-run", type=lambda text: text == "yes", default=False)
add("--restore", choices=["never", "auto"])
add("--restart-lr", choices=["low", "high"])
add("--init_from", default="scratch")
parser.parse_args([])
print(json.dumps(notes.parts["options"]()))
"""
NANO = """
import json
import argparse
import torch
from watchdog_train.client import notes
init_from, lr = "scratch", 1e-3
config_keys = ["init_from", "lr"]
print(json.dumps(notes.parts["options"]()))
"""


def test_the_arguments_that_resume_are_listed(training: Training) -> None:
    """A path, a flag, a value: as the parser has them, and nothing for what surely does not."""
    library(training, "torch", "", "0.1")
    found = training.json(OPTIONS)
    assert found == [
        *("--resume-from {checkpoint}", "--resume {checkpoint}", "--auto_resume"),
        *("--restore=auto", "--init_from=resume"),
    ]
    assert training.json(NANO) == ["--init_from=resume"]


WHOLE = "def init(): return 1\ndef finish(): pass\n"
OUTSIDE = "skipped: wandb {} is outside 0.18 to below 1.0"


@pytest.mark.parametrize(
    ("version", "text", "said", "hook"),
    [
        *((version, WHOLE, "1 False 0", OUTSIDE) for version in ("1.0.0", "0.17.9", "0.x")),
        (None, WHOLE, "1 False 0", OUTSIDE),
        ("0.31.0", "answer = 42\n", "42 False 1", "failed: AttributeError"),
        ("0.99.1", WHOLE, "1 True 0", "armed; not tested with {}"),
    ],
)
def test_a_hook_is_armed_for_the_versions_that_it_is_made_for(
    training: Training, version: str | None, text: str, said: str, hook: str
) -> None:
    """A newer minor version works until it is found not to. Outside its range, and where it lacks
    what is wrapped, a library works as ever, and the reason is written down.
    """
    library(training, "wandb", text, version or "")
    if version is None:
        (training.root / "wandb" / "__init__.py").write_text(text)
    done = training.run(HOOKED)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")
    assert training.note()["hooks"]["wandb"].startswith(hook.format(version))


PLACES = """
import json, os, sys
from watchdog_train.client import milestones, notes, slot
import watchdog_train

def fails():
    raise KeyError("mine")
def nested():
    return milestones.around("inner", lambda: 5)()
try:
    milestones.around("failing", fails)()
except KeyError as error:
    assert str(error) == "'mine'"
assert milestones.around("outer", nested)() == 5
assert milestones.around("outer", lambda: milestones.around("outer", lambda: 1)())() == 1
first = json.loads(json.dumps(milestones.listed()))
for number in range(100):
    watchdog_train.mark("step %d" % number)
for number in range(100):
    milestones.reached("place %d" % number)
child = os.fork()
if child == 0:
    milestones.begin("of the child")
    notes.flush(now=True)
    os._exit(0)
os.waitpid(child, 0)
notes.flush(now=True)
print(json.dumps([first, child, milestones.listed()]))
"""


def test_the_list_is_bounded_ordered_and_not_inherited(training: Training) -> None:
    """Errors pass through, a nested place of the same name is one, marks push nothing else out.

    The exception and the number of times are part of the entry.
    """
    first, child, listed = training.json(PLACES)
    told = {one["name"]: one for one in first}
    assert list(told) == ["failing", "inner", "outer"]
    assert (told["failing"]["failed"], told["outer"]["times"]) == (True, 2)
    assert told["inner"]["end"] <= told["outer"]["end"]
    names = [one["name"] for one in listed]
    assert len(names) <= 48
    assert len([one for one in listed if one["mark"]]) <= 16
    assert names[-1] == "place 99"
    note = note_of(training, child)
    assert note is not None
    assert [one.name for one in note.milestones] == ["of the child"]


UNSUPERVISED = """
import sys
import watchdog_train
from watchdog_train.client import milestones
watchdog_train.mark("x")
milestones.reached("y")
assert milestones.around("z", lambda: 3)() == 3
print(milestones.listed(), "json" in sys.modules, "inspect" in sys.modules)
"""


def test_outside_a_supervised_run_nothing_is_kept(training: Training) -> None:
    """The functions do nothing, and import nothing."""
    env = plain_environment() | {"PYTHONPATH": str(REPOSITORY)}
    done = run_script(training.root, UNSUPERVISED, env=env)
    assert done.stdout == "[] False False\n", done.stderr


LIBRARIES = """
import os, sys, json
import torch, accelerate, datasets, transformers, huggingface_hub
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers
from watchdog_train.client import milestones, slot, layout as L
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()
phases = {}
def note_phase(key):
    phases[key] = L.PHASES[slot.words[L.W_PHASE]]

tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))
tokenizer.save_pretrained("tok")
PreTrainedTokenizerFast.from_pretrained("tok")
GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=4, n_embd=4, n_layer=1, n_head=1)
    ).save_pretrained("model")
model = GPT2LMHeadModel.from_pretrained("model")
assert type(GPT2LMHeadModel.from_pretrained.__self__) is type(GPT2LMHeadModel)
open("d.json", "w").write('{"a": 1}\\n{"a": 2}\\n')
data = datasets.load_dataset("json", data_files="d.json")["train"]
data = data.map(lambda row: note_phase("map") or {"b": row["a"]})
accelerator = accelerate.Accelerator(cpu=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

class State:
    def state_dict(self):
        note_phase("save_state")
        return {}
    def load_state_dict(self, state):
        note_phase("load_state")
accelerator.register_for_checkpointing(State())
accelerator.save_state("ckpt")
accelerator.load_state("ckpt")

try:
    huggingface_hub.hf_hub_download("nobody/nothing", "x.txt", endpoint="http://127.0.0.1:1")
except Exception as error:
    phases["download"] = type(error).__name__
print(json.dumps([phases, [one["name"] for one in milestones.listed()],
                  slot.words[L.W_HOOKS_FAILED], L.PHASES[slot.words[L.W_PHASE]]]))
"""


def test_every_library_names_its_places(training: Training) -> None:
    """Loading, mapping, preparing, saving and the hub's requests are seen, in their phases."""
    for name in ("datasets", "accelerate", "transformers"):
        pytest.importorskip(name)
    home = {"HF_HOME": str(training.root / "hf"), "HF_HUB_DOWNLOAD_TIMEOUT": "2"}
    phases, names, failed, phase = training.json(LIBRARIES, env=home)
    assert failed == 0, training.note()
    assert phases.pop("download") == "LocalEntryNotFoundError"
    assert phases == {"map": "load", "save_state": "checkpoint", "load_state": "load"}
    assert phase == "startup"
    for name in (
        "import torch", "load tokenizer", "load model", "load dataset", "map dataset",
        "build Accelerator", "Accelerator.prepare", "Accelerator.load_state",
        "hub metadata request",
    ):  # fmt: skip
        assert name in names, names
    hooks = training.note()["hooks"]
    assert {name: said for name, said in hooks.items() if not said.startswith("armed")} == {}
    assert {"accelerate", "datasets", "hub", "pretrained", "torch", "parallel"} <= set(hooks)
    record = next(save for save in training.saves() if save.format == "accelerate")
    assert record.path == str(training.root / "ckpt")
    assert {"model.safetensors", "optimizer.bin", "custom_checkpoint_0.pkl"} <= set(record.files)
    assert not [save for save in training.saves() if save.path.startswith(record.path + "/")]
    assert str(training.root) in training.note()["output_dirs"]


FIRST = """
import json, sys
import torch
from watchdog_train.client import milestones, slot, layout as L
class Data(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        seen.append([one["name"] for one in milestones.listed() if one["end"] is None])
        return torch.ones(2)
seen = []
class Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.sum()
    @staticmethod
    def backward(ctx, grad):
        seen.append([one["name"] for one in milestones.listed() if one["end"] is None])
        return torch.ones(2)
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=3):
    Look.apply(weight * batch[0]).backward()
    optimizer.step()
print(json.dumps([seen, [one["name"] for one in milestones.listed() if one["end"] is None]]))
"""


def test_first_batch_backward_pass_and_step(training: Training) -> None:
    """Each of the firsts is open while it lasts, and none once training is under way."""
    seen, at_end = training.json(FIRST)
    assert seen[:4] == [["first batch"]] * 3 + [["first step", "first backward pass"]]
    assert seen[4:] == [[]] * 4
    assert at_end == []


def test_metadata_and_values_of_the_table() -> None:
    """Every hook of the table exists, and its tested versions lie inside its range."""
    from watchdog_train.client import libraries

    hooks = Path(libraries.__file__).parent / "hooks"
    for name, (hook, _, oldest, beyond, tested) in libraries.HOOKS.items():
        file, _, function = hook.partition(":")
        text = (hooks / f"{file}.py").read_text("utf-8")
        assert f"def {function or 'arm'}(" in text or f"{function} = arm" in text, name
        assert tested, name
        for version in tested:
            numbers = libraries.version_numbers(version)
            assert oldest <= numbers < beyond, (name, version)


def test_what_a_training_writes_is_bounded(training: Training) -> None:
    """Milestones that cannot be are left out, names are cut, and other pids are not believed."""
    path = training.slot_dir / f"7{layout.NOTE_SUFFIX}"
    good: dict[str, Any] = {"name": "x" * 500, "begin": 1.0, "end": 2.0}
    bad = [good | {"begin": -1.0}, good | {"end": 0.5}, good | {"begin": 1e300, "end": None}]
    short = good | {"name": "y"}
    path.write_text(json.dumps({"pid": 7, "milestones": [good, *bad] + [short] * 500}))
    note = note_of(training, 7)
    assert len(note.milestones) < 128
    assert {len(one.name) for one in note.milestones} == {80, 1}
    path.write_text(json.dumps({"pid": 8}))
    assert note_of(training, 7) is None
    path.write_text('{"pid": 7, "milestones": [{"name": 5}]}')
    assert note_of(training, 7) is None
