"""Which checkpoint is newest: sets as trainings really name and fill them, oldest first in each."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_samples import (
    lightning_zip,
    look,
    noted,
    safetensors,
    timm_zip,
    torch_zip,
    ultralytics_zip,
    write_files,
    write_hf,
)
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.names import step_in_name
from watchdog_train.checkpoints.order import newest_first

START_S = 1_000_000


def file_of(**content: Any) -> bytes:
    """A checkpoint whose dictionary has these beside the weights."""
    return torch_zip(pickle=pickle.dumps({"model": {"a": 1}, **content}, protocol=2))


FULL = {"optimizer": {}}
NAMES = {
    "steps": "ckpt_20 ckpt_100",
    "zero-padded": "step-000020 step-000100 step-001000",
    "word behind": "rl_model_800_steps rl_model_4800_steps",
    "thousands": "ckpt_5k ckpt_20k ckpt_100k",
    "letters": "e0s40 e1s20 e1s40",
    "epoch and step": "epoch0-step40 epoch1-step20",
    "step before epoch": "step40_epoch0 step20_epoch1",
    "epoch and step without words": "checkpoint_1_900 checkpoint_2_100",
    "fairseq": "checkpoint_1_500 checkpoint_2_1000 checkpoint_10_5000",
    "composer": "ep0-ba400-rank0 ep1-ba100-rank0",
    "lightning names": "epoch=0-step=400 epoch=1-step=800 epoch=10-step=4400",
    "loss behind": "epoch=1-loss=0.90 epoch=2-loss=0.95 epoch=10-loss=0.20",
    "score as a whole number": "ckpt_100_acc_90 ckpt_200_acc_85",
    "score first": "acc_90_step_100 acc_85_step_200",
    "score with a digit": "f1_90_100 f1_85_200",
    "validation": "val87-epoch3 val85-epoch4",
    "days": "ckpt-2026-11-30 ckpt-2026-12-01",
    "days without marks": "run20261130_900 run20261201_100",
    "days and times": "2026-11-30_23-59-10 2026-12-01_00-10-05",
    "day before step": "2026-11-30_step_900 2026-12-01_step_100",
    "seconds since 1970": "ckpt_1764500000 ckpt_1764599999",
    "learning rate": "lr_3_step_100 lr_1_step_200",
    "small learning rate": "lr1e-4_step_100 lr1e-5_step_200",
    "seed": "seed_7_ckpt_5 seed_3_ckpt_9",
    "size of the model": "llama-7b-step-900 llama-7b-step-1000",
    "number in the name of the model": "resnet50_9 resnet50_10",
    "batch size": "bs64_e2 bs64_e10",
    "stage": "stage1_step900 stage2_step100",
    "fold": "fold0_epoch9 fold1_epoch2",
    "GAN": "netG_epoch_9 netG_epoch_24",
    "images seen": "network-snapshot-000800 network-snapshot-010000",
    "numbers alone": "9 10 100",
    "a rank": "model_step_10_rank_1 model_step_20_rank_0",
    "camel": "modelStep900 modelStep1000",
    "version": "model.v2 model.v10",
    "world of both": "llama_tp2_step9 llama_tp2_step10",
}
FOLDERS = {
    "a folder for each": "step_20/state step_100/state",
    "epoch as a folder": "epoch_1/step_90 epoch_2/step_10",
    "a day as a folder": "2026-11-30/ckpt_900 2026-12-01/ckpt_100",
    "numbered folders": "9/model 10/model 100/model",
}


SHUFFLED = pytest.mark.parametrize(
    "shuffled", [False, True], ids=["in order of time", "times an hour apart"]
)


@SHUFFLED
@pytest.mark.parametrize("names", [*NAMES.values(), *FOLDERS.values()], ids=[*NAMES, *FOLDERS])
def test_the_newest_by_name(tmp_path: Path, names: str, shuffled: bool) -> None:
    """The names decide, also where the times were lost on the way, as by a copy."""
    assert_order(tmp_path, [(name, torch_zip()) for name in names.split()], shuffled)


def assert_order(tmp_path: Path, files: list[tuple[str, bytes]], shuffled: bool) -> None:
    for number, (name, content) in enumerate(files):
        path = tmp_path / f"{name}.pt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        at_s = START_S + (-3600 if shuffled else 60) * number
        os.utime(path, (at_s, at_s))
    assert order_of(tmp_path) == [name for name, _ in files][::-1]


def order_of(directory: Path, **options: Any) -> list[str]:
    found = look(directory, **options)
    return [str(Path(one.path).relative_to(directory).with_suffix("")) for one in found]


CONTENTS: dict[str, list[tuple[str, bytes]]] = {
    "step inside": [("b", file_of(step=20)), ("a", file_of(step=100))],
    "epoch inside, step anew": [("a", file_of(epoch=0, step=40)), ("b", file_of(epoch=1, step=20))],
    "epoch in the name, step inside": [
        ("epoch0", file_of(step=40)), ("epoch1", file_of(step=20)),
    ],
    "inside beats the name": [("ckpt_900", file_of(step=5)), ("ckpt_10", file_of(step=6))],
    "iterations": [("x9", file_of(iter_num=2000)), ("x1", file_of(iter_num=4000))],
    "equal inside, then the name": [
        ("s_20", file_of(epoch=1)), ("s_100", file_of(epoch=1)),
    ],
    "weights after the whole state": [
        ("weights_200", torch_zip(pickle=pickle.dumps({"layer.weight": None}))),
        ("state_100", file_of(**FULL)),
    ],
    "best weights, written last": [
        ("best", file_of()), ("last", file_of(step=3, **FULL)),
    ],
    "last and numbered": [
        ("epoch_1", file_of(epoch=1)), ("epoch_2", file_of(epoch=2)), ("last", file_of(epoch=3)),
    ],
}  # fmt: skip


@SHUFFLED
@pytest.mark.parametrize("files", CONTENTS.values(), ids=CONTENTS)
def test_the_newest_by_what_is_inside(
    tmp_path: Path, files: list[tuple[str, bytes]], shuffled: bool
) -> None:
    """What a file says of itself goes before its name, and nothing is unpickled for it."""
    assert_order(tmp_path, files, shuffled)


def saved(path: Path, *, at_s: float, note: tuple[int, float] | None = None, **record: Any) -> Any:
    """A file of that time; with a note of an attempt, its record."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(record.pop("content", torch_zip()))
    os.utime(path, (START_S + at_s,) * 2)
    if note is None:
        return None
    return noted(path, attempt=note[0], t=note[1], **record)


def test_noted_saves_go_by_attempt_and_time_of_the_note(tmp_path: Path) -> None:
    """The hooks of a later attempt may count from zero, and a name from its epoch."""
    saves = (
        saved(tmp_path / "step-000100.pt", at_s=0, note=(1, 50.0), step=100),
        saved(tmp_path / "step-000110.pt", at_s=-3600, note=(2, 60.0), step=10),
        saved(tmp_path / "epoch0-step40.pt", at_s=9, note=(2, 70.0), step=40),
        saved(tmp_path / "sub" / "epoch1-step20.pt", at_s=8, note=(3, 20.0), step=20),
    )
    found = order_of(tmp_path, saves=saves)
    assert found == ["sub/epoch1-step20", "epoch0-step40", "step-000110", "step-000100"]


def test_what_another_training_saves_into_the_folder_comes_last(tmp_path: Path) -> None:
    """Newer and higher, and nobody has noted it; nor a copy that was made after the newest save."""
    saves = tuple(
        saved(tmp_path / f"step-{step:06}.pt", at_s=step, note=(1, float(step)), step=step)
        for step in (40, 50)
    )
    for step in (900, 910):
        saved(tmp_path / f"step-{step:06}.pt", at_s=step)
    saved(tmp_path / "best.pt", at_s=990)
    assert order_of(tmp_path, saves=saves)[:2] == ["step-000050", "step-000040"]


def test_full_state_of_another_training_in_a_trainer_folder(tmp_path: Path) -> None:
    """The largest number is what the Trainer takes, of those that this training has saved."""
    ours = [write_hf(tmp_path, step, at_s=START_S + step) for step in (40, 50)]
    saves = tuple(noted(path, "hf", step=int(path.name[-2:]), t=1.0, attempt=1) for path in ours)
    write_hf(tmp_path, 60, at_s=START_S + 60)
    assert next(iter(look(tmp_path, saves=saves))).step == 60, "killed before it was noted"
    for step in (900, 1000):
        write_hf(tmp_path, step, at_s=START_S + 60)
    assert [one.step for one in look(tmp_path, saves=saves)][:2] == [50, 40]
    assert [one.step for one in look(tmp_path)][:2] == [1000, 900]


def test_frameworks_keep_their_own_order_before_loose_files(tmp_path: Path) -> None:
    """Lightning takes the newest file, whatever its step; weights in safetensors come last."""
    files = {"last.ckpt": lightning_zip(20), "epoch=9.ckpt": lightning_zip(900)}
    for number, (name, content) in enumerate((*files.items(), ("step_7.pt", file_of(**FULL)))):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (START_S - number, START_S - number))
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    assert order_of(tmp_path) == ["last", "epoch=9", "step_7", "model"]


STEMS = {
    "ckpt_100": 100, "model-step=1200-loss=0.25": 1200, "step500": 500, "epoch_3": None,
    "epoch=3-step=1200": 1200, "e1s20": 20, "ep1-ba200-rank0": 200, "100_epoch_3": None,
    "iter_0000123": 123, "rl_model_4800_steps": 4800, "ckpt_10k": 10_000, "ckpt_100_acc_90": 100,
    "f1_90_step_100": 100, "lr1e-05_step_100": 100, "opt-125m_step_500": 500,
    "ckpt-2026-11-30": None, "20261130_153000": None, "resnet50": None, "llama-7b": None,
    "ckpt-3f2a9b": None, "last": None, "weights_0.5": None, "42": 42, "model_2_100": 100,
}  # fmt: skip


@pytest.mark.parametrize(("stem", "step"), STEMS.items())
def test_steps_in_file_names(stem: str, step: int | None) -> None:
    """Believed where the name sets it apart; an epoch, a date, a score are none."""
    assert step_in_name(stem) == step


MIXED: dict[str, tuple[dict[str, bytes], str]] = {
    "numbered, and others by time": (
        dict.fromkeys(
            ("ckpt_20.pt", "best.pt", "ckpt_100.pt", "ckpt_30.pt", "last.pt"), torch_zip()
        ),
        "last.pt ckpt_100.pt ckpt_30.pt best.pt ckpt_20.pt",
    ),
    "between folders": (
        {"first/ckpt_1000.pt": torch_zip(), "second/ckpt_50.pt": torch_zip()},
        "second/ckpt_50.pt first/ckpt_1000.pt",
    ),
    # A second fit into one directory counts from zero again, and top-k keeps old steps.
    "Lightning by time": (
        {f"{step}.ckpt": lightning_zip(step) for step in (100, 200, 50)},
        "50.ckpt 200.ckpt 100.ckpt",
    ),
    # It was saved in the middle of the next epoch.
    "recovery file of timm": (
        {"last.pth.tar": timm_zip(4), "recovery-4-500.pth.tar": timm_zip(4)},
        "recovery-4-500.pth.tar last.pth.tar",
    ),
    # last.pt is overwritten in place; best.pt may be the same epoch or an older one.
    "epochs of ultralytics": (
        {f"{name}.pt": ultralytics_zip(n) for name, n in (("last", 7), ("best", 5), ("epoch0", 0))},
        "last.pt best.pt epoch0.pt",
    ),
}


@pytest.mark.parametrize(("files", "expected"), MIXED.values(), ids=MIXED)
def test_the_newest_of_mixed_files(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    write_files(tmp_path, files)
    found = [str(Path(one.path).relative_to(tmp_path)) for one in look(tmp_path)]
    assert found == expected.split()


def test_the_newest_of_timm_is_last_before_its_links(tmp_path: Path) -> None:
    """A hard link to what is last comes after it; a number in a name is an epoch."""
    write_files(tmp_path, {"checkpoint-3.pth.tar": timm_zip(3), "last.pth.tar": timm_zip(4)})
    os.link(tmp_path / "last.pth.tar", tmp_path / "checkpoint-4.pth.tar")
    assert order_of(tmp_path) == ["last.pth", "checkpoint-4.pth", "checkpoint-3.pth"]
    assert {item.step for item in look(tmp_path)} == {None}


def test_ten_thousand_files_without_a_number_are_put_in_order_at_once() -> None:
    """A folder of tensors must not use up the time that the scan of checkpoints has."""
    rest = {"format": "torch", "step": None}
    made = [
        Candidate(path=f"/{number:x}n.pt", files={"a": (1, number)}, **rest)
        for number in range(10_000)
    ]
    began = time.process_time()
    assert [*newest_first(made)] == made[::-1]
    assert time.process_time() - began < 2
