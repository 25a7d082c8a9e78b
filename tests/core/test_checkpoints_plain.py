"""Single files: which are checkpoints, which is newest, which is whole."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.checkpoint_samples import LEGACY, look, only, safetensors, torch_zip, write_files
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.names import number_in_name
from watchdog_train.checkpoints.order import newest_first


@pytest.mark.parametrize(
    ("stem", "step", "epoch"),
    [
        ("ckpt_100", 100, None),
        ("model-step=1200-loss=0.25", 1200, None),
        ("step500", 500, None),
        ("epoch_3", None, 3),
        ("epoch=3-step=1200", 1200, 3),
        ("e1s20", 20, 1),
        ("ep1-ba200-rank0", 200, 1),
        ("100_epoch_3", None, 3),
        ("iter_0000123", 123, None),
        ("rl_model_4800_steps", 4800, None),
        ("ckpt_10k", 10_000, None),
        ("ckpt_100_acc_90", 100, None),
        ("f1_90_step_100", 100, None),
        ("lr1e-05_step_100", 100, None),
        ("opt-125m_step_500", 500, None),
        ("ckpt-2026-11-30", None, None),
        ("20261130_153000", None, None),
        ("resnet50", None, None),
        ("llama-7b", None, None),
        ("ckpt-3f2a9b", None, None),
        ("last", None, None),
        ("weights_0.5", None, None),
        ("42", 42, None),
        ("model_2_100", 100, None),
    ],
)
def test_numbers_in_file_names(stem, step, epoch):
    """A step is believed where the name sets it apart; an epoch, a date, a score are none."""
    assert number_in_name(stem) == (step, epoch)


@pytest.mark.parametrize(
    ("content", "format_", "whole", "why"),
    [
        (torch_zip(), "torch", True, "entries in place"),
        (LEGACY, "torch", None, "old pickle"),
        (b"", "torch", False, "empty"),
        (bytes(500), "torch", False, "zeros"),
        (b"PK", "torch", False, "first bytes"),
        (b"hello, this is something else", "torch", None, "foreign"),
        (torch_zip() + b"more", "torch", False, "does not end"),
        (b"PK\x03\x04" + bytes(100), "torch", False, "cut short or damaged"),
    ],
)
def test_one_file_of_torch_save(tmp_path, content, format_, whole, why):
    """The beginning decides the format, the end and the entries whether it is whole."""
    (tmp_path / "model.pt").write_bytes(content)
    finding = only(tmp_path)
    assert (finding.format, finding.whole) == (format_, whole)
    assert why in finding.said


def test_parts_and_data_sets_are_no_checkpoints(tmp_path):
    """Optimizer files, pickled arguments and .bin data sets are not offered to resume from."""
    write_files(
        tmp_path,
        {
            "optimizer.pt": torch_zip(),
            "training_args.bin": torch_zip(),
            "rng_state.pth": torch_zip(),
            "train.bin": bytes(range(256)),
            "notes.txt": b"x",
        },
    )
    assert look(tmp_path) == ()


def test_names_of_unfinished_saves_are_partial(tmp_path):
    """model.pt.tmp is listed, as partial, whatever is in it."""
    write_files(tmp_path, {"model.pt.tmp": torch_zip(), "model.pt": torch_zip()})
    told = {os.path.basename(finding.path): finding.whole for finding in look(tmp_path)}
    assert told == {"model.pt.tmp": False, "model.pt": True}


def test_newest_by_number_and_unnumbered_by_time(tmp_path):
    """Numbers decide, and last.pt stands where its time puts it."""
    names = ["ckpt_20.pt", "best.pt", "ckpt_100.pt", "ckpt_30.pt", "last.pt"]
    write_files(tmp_path, dict.fromkeys(names, torch_zip()))
    found = [os.path.basename(finding.path) for finding in look(tmp_path)]
    assert found == ["last.pt", "ckpt_100.pt", "ckpt_30.pt", "best.pt", "ckpt_20.pt"]


def test_ten_thousand_files_without_a_number_are_put_in_order_at_once():
    """A folder of tensors must not use up the time that the scan of checkpoints has."""
    rest = {"format": "torch", "step": None, "epoch": None}
    made = [
        Candidate(path=f"/{number:x}n.pt", files={"a": (1, number)}, **rest)
        for number in range(10_000)
    ]
    began = time.monotonic()
    assert [*newest_first(made)] == made[::-1]
    assert time.monotonic() - began < 2


def test_between_directories_time_decides(tmp_path):
    """Step 50 of a second stage is newer than step 1000 of the first."""
    write_files(tmp_path / "first", {"ckpt_1000.pt": torch_zip()}, at_s=1_000_000)
    write_files(tmp_path / "second", {"ckpt_50.pt": torch_zip()}, at_s=1_000_500)
    assert [finding.step for finding in look(tmp_path)] == [50, 1000]


def test_saved_without_checksums_is_not_called_damaged(tmp_path):
    """torch can save with all checksums zero: the full level then tells what it could not do."""
    import torch

    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"weights": torch.arange(10)}, tmp_path / "model.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    finding = only(tmp_path, level="full")
    assert (finding.whole, finding.how_checked) == (True, "quick")
    assert "without checksums" in finding.said


def test_what_real_libraries_write(tmp_path):
    """torch.save in both formats and safetensors with odd types, at both levels."""
    import torch
    from safetensors.torch import save_file

    state = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.tensor(1), "c": torch.empty(0)}
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "weights.safetensors", metadata={"step": "1"})
    for level in ("quick", "full"):
        told = {
            os.path.basename(item.path): (item.format, item.whole)
            for item in look(tmp_path, level=level)
        }
        assert told == {
            "new.pt": ("torch", True),
            "old.pt": ("torch", None),
            "weights.safetensors": ("safetensors", True),
        }


def header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "whole", "why"),
    [
        (header(b"{}"), True, "0 tensors"),
        (header(b"{}", b"x"), False, "describes"),
        (header(b"[]"), False, "not a table"),
        (header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', bytes(8)), False,
         "gap"),
        (header(b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}', bytes(8)), False,
         "disagree"),
        (header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, true]}}'), False,
         "wrong at tensor"),
        ((2**63).to_bytes(8, "little") + b"{}", False, "cut short"),
        (header(b"[" * 100_000), False, "does not parse"),
    ],
)  # fmt: skip
def test_safetensors_headers_are_held_against_the_size(tmp_path, content, whole, why):
    """The header must describe the file to the byte."""
    (tmp_path / "model.safetensors").write_bytes(content)
    finding = only(tmp_path)
    assert finding.whole is whole
    assert why in finding.said


def test_shards_with_an_index_are_one_checkpoint(tmp_path):
    """The directory stands for its shards; without the index, written last, it is partial."""
    shards = {f"model-0000{n}-of-00002.safetensors": safetensors((f"t{n}",)) for n in (1, 2)}
    write_files(tmp_path / "step-7", shards)
    assert only(tmp_path).whole is False
    weights = {f"t{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    index = json.dumps({"weight_map": weights}).encode()
    write_files(tmp_path / "step-7", {"model.safetensors.index.json": index}, at_s=1_000_001.0)
    finding = only(tmp_path)
    assert (finding.path, finding.step, finding.whole) == (str(tmp_path / "step-7"), 7, True)
    write_files(tmp_path / "step-7", dict(list(shards.items())[:1]), at_s=1_000_002.0)
    finding = only(tmp_path)
    assert finding.whole is None, "a save over it has begun: the index is of the older one"
