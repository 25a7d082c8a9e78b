"""The client inside a Hugging Face Trainer: progress, saves, resuming, requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training, answered, plain_environment, run_script
from watchdog_train.client import layout
from watchdog_train.core.model import newest_checkpoint

pytest.importorskip("transformers")


BASE = """
import hashlib, json, os, sys
import torch, transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index):
        row = torch.arange(6) + index % 4
        return {"input_ids": row, "labels": row}

def trainer(out, steps=4, callbacks=(), **more):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    arguments = dict(max_steps=steps, save_steps=2, per_device_train_batch_size=2,
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
    arguments.update(more)
    return Trainer(GPT2LMHeadModel(config), TrainingArguments(out, **arguments),
        train_dataset=Data(), eval_dataset=Data(), callbacks=list(callbacks))

def digest(t):
    data = b"".join(p.detach().numpy().tobytes() for p in t.model.parameters())
    return hashlib.sha256(data).hexdigest()

def words():
    from watchdog_train.client import slot
    return list(slot.words[:36])
"""

SAME = """
t = trainer("out", eval_strategy="steps", eval_steps=2)
t.train()
losses = [entry["loss"] for entry in t.state.log_history if "loss" in entry]
print(json.dumps([losses, digest(t), sorted(os.listdir("out")), torch.rand(1).item()]))
"""


@pytest.mark.slow
def test_a_trainer_gives_the_same_bits_with_and_without_us(training: Training) -> None:
    """Losses, weights and files are equal, and what is printed is as well."""
    with_us = training.run(BASE + SAME)
    without = training.alone(BASE + SAME)
    assert with_us.stdout.splitlines()[-1] == without.stdout.splitlines()[-1]
    assert len(with_us.stdout.splitlines()) == len(without.stdout.splitlines())


SEEN = """
phases = []
class Look(TrainerCallback):
    def on_step_begin(self, *args, **kwargs): phases.append(words()[17])
    def on_prediction_step(self, *args, **kwargs): phases.append(words()[17])
    def on_save(self, *args, **kwargs): phases.append(words()[17])
t = trainer("out", callbacks=[Look()])
t.train()
during = list(phases)
after = words()
del phases[:]
t.evaluate()
print(json.dumps([after, during, phases, words()[17]]))
"""


def test_progress_phases_and_saves_are_seen(training: Training) -> None:
    """global_step, totals, loss and phases are in the slot; a save is recorded file by file."""
    words, during, evaluating, at_end = training.json(BASE + SEEN)
    assert words[layout.W_FRAMEWORK_STEP] == 5
    assert words[layout.W_OPTIMIZER_STEPS] == 4
    assert words[layout.W_TOTAL_STEPS] == 4
    assert words[layout.W_TRAIN_ORDINAL] == 1
    assert words[layout.W_LOSS] > 0
    assert words[layout.W_SAMPLES_PER_S] > 0
    assert words[layout.W_SAVES_BEGUN] == words[layout.W_SAVES_ENDED] >= 2
    assert words[layout.W_HOOKS_FAILED] == 0
    assert words[layout.W_PHASE] == at_end == layout.PHASE_FINISHING
    assert during[0] == layout.PHASE_FIRST_STEP
    assert set(during[1:]) == {layout.PHASE_TRAIN}
    assert set(evaluating) == {layout.PHASE_EVAL}
    note = training.note()
    assert note["hooks"]["transformers"] == "armed"
    assert note["output_dirs"] == [str(training.root / "out")]
    first, second = training.saves()
    assert first.path == str(training.root / "out" / "checkpoint-2")
    assert (first.format, first.step, first.ordinal) == ("hf", 2, 1)
    assert first.output_dir == str(training.root / "out")
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= set(first.files)
    for name, (size, mtime_ns) in second.files.items():
        found = (Path(second.path) / name).stat()
        assert (size, mtime_ns) == (found.st_size, found.st_mtime_ns)


RESUME = """
first = []
class Look(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs): first.append(state.global_step)
given = json.loads(sys.argv[2]) if len(sys.argv) > 2 else None
for out in sys.argv[1].split(","):
    t = trainer(out, callbacks=[Look()], steps=6, save_strategy="no")
    t.train(**({} if given is None else {"resume_from_checkpoint": given}))
print(json.dumps([first, words()]))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    script = BASE + "trainer('out').train()\n"
    done = run_script(root, script, env=plain_environment())
    assert done.returncode == 0, done.stderr
    return root / "out"


def resumed(
    training: Training, checkpoints: Path, order: dict[str, Any], *arguments: str
) -> tuple[list[int], list[int]]:
    (training.root / "out").symlink_to(checkpoints)
    at = {"step": 2, "output_dir": str(training.root / "out"), "ordinal": 1}
    training.resumes("hf", checkpoints / "checkpoint-2", **at | order)
    first, words = training.json(BASE + RESUME, *arguments)
    return first, words


ORDERS = {
    # The order, the outputs of the trainings, the step at which each begins, and what is noted.
    "the training it came from": ({"ordinal": 2}, ("other,out,out",), [0, 2, 0], "resumed from"),
    # The third training of the last attempt is the first of this one: its directory tells.
    "after finished folds": ({"ordinal": 3, "nth": 1}, ("other,out,out",), [0, 2, 0], ""),
    "without an ordinal the first": ({"ordinal": None}, ("out,out",), [2, 0], ""),
    "a value of the user": ({}, ("out", "CHECKPOINT-4"), [4], "the script says itself"),
    "a second stage": ({"ordinal": 2, "nth": 2}, ("out,other,out,out",), [0, 0, 2, 0], ""),
    "another model": ({"nth": 1, "signature": "x"}, ("out",), [0], "another model, data"),
}


@pytest.mark.parametrize(
    "case",
    [next(iter(ORDERS)), *(pytest.param(case, marks=pytest.mark.slow) for case in [*ORDERS][1:])],
)
def test_which_training_is_resumed(case: str, training: Training, checkpoints: Path) -> None:
    """By its directory, its number in it and what it trains; a value of the user's stays."""
    order, arguments, steps, noted = ORDERS[case]
    own = json.dumps(str(checkpoints / "checkpoint-4"))
    given = [own if word == "CHECKPOINT-4" else word for word in arguments]
    first, words = resumed(training, checkpoints, order, *given)
    assert first == steps
    assert words[layout.W_RESUMED_STEP] == (3 if 2 in steps else 0)
    note = training.note()
    assert any(noted in each for each in note["notes"])
    if case == "after finished folds":
        assert note["training"]["home"] == str(training.root / "out")
        assert (note["training"]["nth"], note["training"]["ordinal"]) == (2, 3)


WRITTEN_OVER = """
import json, os, sys
import watchdog_train
from watchdog_train.client import notes, resume
print(json.dumps([resume.checkpoint_for(sys.argv[1], "out", 1, None), notes._notes]))
"""


@pytest.mark.parametrize("kind", ["hf", "lightning"])
def test_a_checkpoint_that_was_written_over_is_not_resumed(training: Training, kind: str) -> None:
    """An earlier stage, trained again, has saved in its place: it is that one's weights now."""
    path = training.root / "out" / "checkpoint-2"
    path.mkdir(parents=True)
    newest = path / "trainer_state.json"
    if kind == "lightning":
        newest = path = path / "last.ckpt"
    newest.write_text("{}")
    chosen = newest.stat().st_mtime_ns / 1e9
    training.resumes(kind, path, saved_at=chosen, output_dir=str(training.root / "out"))
    assert training.json(WRITTEN_OVER, kind) == [str(path), []]
    training.attempt = 2
    training.resume["saved_at"] = chosen - 1.0
    why = "not resumed: another training has written over the checkpoint since"
    assert training.json(WRITTEN_OVER, kind) == [None, [why]]


BEGINS_AGAIN = """
import json, sys
import watchdog_train
from watchdog_train.client import layout, resume, slot
given, home, signature, nth, first = json.loads(sys.argv[1])
for _ in range(nth):
    resume.checkpoint_for("hf", home, 1, given, signature)
resume.first_step(first)
print(slot.words[layout.W_BEGAN_ANEW])
"""


@pytest.mark.parametrize(
    ("given", "home", "signature", "nth", "first", "told"),
    [
        (None, "out", "a", 1, 1, 2),
        (True, "out", "a", 1, 19, 20),  # an older one of its own
        (None, "out", "a", 1, 21, 0),
        ("out/checkpoint-4", "out", "a", 1, 5, 0),  # as the user said
        (None, "elsewhere", "a", 1, 1, 0),  # another fold
        (None, "out", "b", 1, 1, 0),  # another stage
        (None, "out", "a", 2, 1, 0),
    ],
)
def test_a_trainer_that_begins_again_is_told_at_its_first_step(
    given: Any, home: str, signature: str, nth: int, first: int, told: int, training: Training
) -> None:
    """Only of the training that the checkpoint is of: another one begins where it begins."""
    path = training.root / "out" / "checkpoint-20"
    path.mkdir(parents=True)
    at = {"output_dir": str(training.root / "out"), "signature": "a"}
    training.resumes("hf", path, via="script", step=20, nth=1, **at)
    words = json.dumps([given, home, signature, nth, first])
    assert training.json(BEGINS_AGAIN, words) == told


DATED = """
import json, sys
import watchdog_train
from watchdog_train.client import resume
given, home, signature = json.loads(sys.argv[1])
print(json.dumps(resume.checkpoint_for("hf", home, 1, given, signature) is not None))
"""


@pytest.mark.parametrize(
    ("words", "order", "resumes"),
    [
        ((None, "out-12-01", "a"), {}, True),  # the date is a part of its name
        ((False, "out-12-01", "a"), {}, True),
        ((True, "out-12-01", "a"), {}, False),  # the script resumes by itself
        ((None, "out-12-01", "a"), {"sole": False}, False),  # maybe another fold
        ((None, "out-12-01", "a"), {"ordinal": 2}, False),
        ((None, "out-12-01", "b"), {}, False),
        ((None, "out-11-30", "a"), {"sole": False}, True),
    ],
)
def test_the_only_training_resumes_in_another_directory(
    words: tuple[Any, str, str], order: dict[str, Any], resumes: bool, training: Training
) -> None:
    path = training.root / "out-11-30" / "checkpoint-20"
    path.mkdir(parents=True)
    at = {"step": 20, "nth": 1, "ordinal": 1, "output_dir": str(path.parent)}
    training.resumes("hf", path, **at | {"signature": "a", "sole": True} | order)
    assert training.json(DATED, json.dumps(words)) is resumes


@pytest.mark.slow
def test_one_process_of_an_attempt_resumes(training: Training, checkpoints: Path) -> None:
    """A pool that starts a process for each task: only the first of them goes on."""
    first, _ = resumed(training, checkpoints, {"nth": 1}, "out")
    assert first == [2]
    again, _ = training.json(BASE + RESUME, "out")
    assert again == [0]


EACH_RANK = """
import json, sys
import watchdog_train as wt
wt.beat(0)
from watchdog_train.client import resume
print(json.dumps(resume.checkpoint_for("lightning", "out", 1, None)))
"""


def test_every_rank_of_an_attempt_resumes(training: Training) -> None:
    """Lightning gives its second process a local rank alone: it is not the first one again."""
    path = training.root / "last.ckpt"
    path.touch()
    training.resumes("lightning", path, output_dir=str(training.root / "out"))
    ranks: list[dict[str, str]] = [
        {},
        {"LOCAL_RANK": "1", "NODE_RANK": "0"},
        {"LOCAL_RANK": "1", "NODE_RANK": "1"},
        {"RANK": "2"},
        {"SLURM_PROCID": "1"},
    ]
    assert [training.json(EACH_RANK, env=rank) for rank in ranks] == [str(path)] * len(ranks)
    assert [training.json(EACH_RANK, env=rank) for rank in ranks] == [None] * len(ranks)


ASKED = """
class Wait(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step in (3, 6):
            print("now", flush=True)
            sys.stdin.readline()
t = trainer("out", steps=1000, callbacks=[Wait()], save_strategy="no", logging_strategy="no")
t.train()
t.save_model()
print(t.state.global_step, sorted(name for name in os.listdir("out") if "-" in name))
sys.stdout.flush()
sys.stdin.readline()
"""


def test_requests_are_acted_on_at_the_end_of_a_step(training: Training) -> None:
    """A save-request saves and goes on, a stop-request saves and ends; both are answered."""
    with training.control() as page, training.waiting(BASE + ASKED, "now") as process:
        assert training.reading().can_save
        assert training.reading().can_stop
        saving = page.request_save()
        assert answered(process) == "now\n"
        stopping = page.request_stop()
        line = answered(process)
        while line and not line.startswith("7 "):
            line = process.stdout.readline()
        assert "['checkpoint-4', 'checkpoint-7']" in line
        reading = training.reading()
        assert (reading.save_answered, reading.stop_answered) == (saving, stopping)
        assert (reading.step, reading.phase) == (7, "finishing")
    assert [save.step for save in training.saves() if save.format == "hf"] == [4, 7]
    assert Path(training.saves()[-1].path).name == "training_args.bin"
    newest = newest_checkpoint(training.saves())
    assert Path(newest.path).name == "checkpoint-7"


EXPLICIT = """
import pickle
from watchdog_train.integrations.transformers import WatchdogCallback
t = trainer("out", callbacks=[WatchdogCallback()], save_strategy="no")
t.train()
copied = pickle.loads(pickle.dumps(WatchdogCallback()))
print(json.dumps([t.state.global_step, type(copied).__name__]))
"""


@pytest.mark.slow
def test_the_explicit_callback_does_nothing_unsupervised(training: Training) -> None:
    """Added by hand it works in and out of a supervised run, and is pickled as a plain one."""
    env = plain_environment() | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    without = run_script(training.root, BASE + EXPLICIT, env=env)
    assert without.stdout.splitlines()[-1] == '[4, "TrainerCallback"]', without.stderr
    assert training.json(BASE + EXPLICIT) == [4, "TrainerCallback"]


DATASETS = """
import json, sys
import datasets
from tqdm import tqdm
from watchdog_train.client import slot, layout as L
seen = []
def work(row):
    seen.append(slot.words[L.W_PHASE])
    return {"y": row["x"] + 1}
data = datasets.Dataset.from_dict({"x": [1, 2, 3]})
datasets.disable_progress_bars()
rows = data.map(work, num_proc=2).filter(lambda row: row["y"] > 2, num_proc=2)["y"]
ticks = slot.words[L.W_TICKS]
bar = tqdm(total=3, file=open("bar", "w"), mininterval=0)
bar.refresh(); bar.refresh()
still = slot.words[L.W_TICKS]
bar.update(1); bar.refresh()
bar.close()
print(json.dumps([list(rows), seen, still - ticks, slot.words[L.W_TICKS] - still,
                  slot.words[L.W_SETTINGS_TAKEN]]))
"""


def test_datasets_and_progress_bars(training: Training) -> None:
    """map() is phase load and loses its processes when asked; a bar counts only when it moves."""
    pytest.importorskip("datasets")
    training.settings = [{"id": "num-proc-none"}]
    rows, seen, still, moved, taken = training.json(
        DATASETS, env={"HF_HOME": str(training.root / "hf"), "HF_HUB_OFFLINE": "1"}
    )
    assert rows == [3, 4]
    assert seen == [layout.PHASE_LOAD] * 3
    assert (still, moved, taken) == (0, 1, 1)
    assert training.note()["settings"]["num-proc-none"]["why"] == "num_proc 2 -> None"
