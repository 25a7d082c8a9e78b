"""Checkpoints of the Trainer: every rule of a complete save, one case a line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.checkpoint_samples import (
    LEGACY,
    MODEL_ONLY,
    hf_files,
    look,
    only,
    safetensors,
    torch_zip,
    write_files,
    write_hf,
)
from tests.support import run_command

TINY_TRAINER = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
for out in ("everything", "model-only"):
    arguments = TrainingArguments(
        f"{sys.argv[1]}/{out}", max_steps=4, save_steps=2, per_device_train_batch_size=2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_only_model=out == "model-only",
    )
    Trainer(model=model, args=arguments, train_dataset=data).train()
"""


def test_a_complete_save_is_whole(tmp_path):
    """All files of a save in their order are whole at both levels."""
    path = write_hf(tmp_path, 20)
    quick, full = only(tmp_path), only(tmp_path, level="full")
    assert (quick.path, quick.format, quick.step, quick.whole) == (str(path), "hf", 20, True)
    assert (quick.how_checked, full.how_checked, full.whole) == ("quick", "full", True)


PARTIAL = {
    "no witness": ({"trainer_state__json": None}, "trainer_state.json is missing"),
    "witness of another step": ({"trainer_state__json": b'{"global_step": 10}\n'}, "says step 10"),
    "witness with a bool": ({"trainer_state__json": b'{"global_step": true}\n'}, "says step True"),
    "witness cut": ({"trainer_state__json": b'{"global_st'}, "does not parse"),
    "witness is a list": ({"trainer_state__json": b"[]\n"}, "says step None"),
    "witness nests deep": ({"trainer_state__json": b"[" * 200_000}, "does not parse"),
    "no weights": ({"model__safetensors": None}, "weights are missing"),
    "no optimizer": ({"optimizer__pt": None}, "optimizer.pt is missing"),
    "no scheduler": ({"scheduler__pt": None}, "scheduler.pt is missing"),
    "no random state": ({"rng_state__pth": None}, "rng_state.pth is missing"),
    "empty optimizer": ({"optimizer__pt": b""}, "optimizer.pt: the file is empty"),
    "cut optimizer": ({"optimizer__pt": torch_zip()[:-9]}, "optimizer.pt: cut short"),
    "zeros for weights": ({"model__safetensors": bytes(99)}, "model.safetensors"),
    "marker": ({"checkpoint-is-incomplete__txt": b""}, "has not finished"),
    "temporary file": ({"model__safetensors__tmp": b"x"}, "still being written"),
    "broken config": ({"config__json": b"{"}, "config.json"),
}


@pytest.mark.parametrize(("changes", "why"), PARTIAL.values(), ids=PARTIAL)
def test_a_half_written_save_is_rejected_with_its_reason(tmp_path, changes, why):
    """What is missing or cut makes the checkpoint partial, and the reason names it."""
    write_hf(tmp_path, 20, **changes)
    finding = only(tmp_path)
    assert finding.whole is False
    assert why in finding.said


def test_the_content_decides_not_the_last_newline(tmp_path):
    """JSON that parses is complete; an object that is cut anywhere does not parse."""
    write_hf(tmp_path, 20, trainer_state__json=b'{"global_step": 20}')
    assert only(tmp_path).whole is True


def test_model_only_saves_are_whole_where_the_arguments_say_so(tmp_path):
    """Without optimizer, scheduler and random state training_args.bin decides."""
    lacking = {"optimizer__pt": None, "scheduler__pt": None, "rng_state__pth": None}
    write_hf(tmp_path / "a", 5, training_args__bin=torch_zip(pickle=MODEL_ONLY), **lacking)
    write_hf(tmp_path / "b", 5, **lacking)
    write_hf(tmp_path / "c", 5, training_args__bin=None, **lacking)
    del lacking["optimizer__pt"]
    write_hf(tmp_path / "d", 5, training_args__bin=torch_zip(pickle=MODEL_ONLY), **lacking)
    # The witness stays the newest file.
    for name in "abcd":
        os.utime(tmp_path / name / "checkpoint-5" / "trainer_state.json", (2e6, 2e6))
    told = {finding.path.split("/")[-2]: finding.whole for finding in look(tmp_path)}
    assert told == {"a": True, "b": False, "c": None, "d": False}


def test_legacy_pickles_inside_are_unknown(tmp_path):
    """A part that nothing can check makes the whole unknown, not whole and not partial."""
    write_hf(tmp_path, 5, scheduler__pt=LEGACY)
    os.utime(tmp_path / "checkpoint-5" / "trainer_state.json", (2e6, 2e6))
    finding = only(tmp_path)
    assert finding.whole is None
    assert "scheduler.pt: an old pickle" in finding.said


@pytest.mark.parametrize(
    ("ranks", "world_size", "whole"),
    [
        ((0, 1), None, True),
        ((0, 2), None, False),
        ((1,), None, False),
        ((0,), None, False),
        ((0, 1), 4, False),
        ((0, 1, 2, 3), 4, True),
        ((0, 1, 2, 3), 2, True),
    ],
)
def test_random_states_match_the_world_size(tmp_path, ranks, world_size, whole):
    """Every rank's random state is there, as far as the world size is known."""
    files = hf_files(20)
    del files["rng_state.pth"]
    for rank in ranks:
        files[f"rng_state_{rank}.pth"] = torch_zip()
    write_files(tmp_path / "checkpoint-20", files)
    os.utime(tmp_path / "checkpoint-20" / "trainer_state.json", (2e6, 2e6))
    assert only(tmp_path, world_size=world_size).whole is whole


def test_a_stale_witness_is_a_doubt_and_an_older_clean_one_is_preferred(tmp_path):
    """A save that began over a complete directory leaves its old witness: not called whole."""
    write_hf(tmp_path, 10)
    newer = write_hf(tmp_path, 20)
    os.utime(newer / "model.safetensors", (2_000_000, 2_000_000))
    suspect, clean = look(tmp_path)
    assert (suspect.step, suspect.whole, suspect.how_checked) == (20, None, "full")
    assert "older than model.safetensors" in suspect.said
    assert (clean.step, clean.whole) == (10, True)


def test_damage_under_a_stale_witness_is_found_at_level_quick(tmp_path):
    """A doubt is looked into: checksums are read although only a quick look was asked for."""
    path = write_hf(tmp_path, 20)
    damaged = bytearray(torch_zip())
    damaged[damaged.index(bytes(range(64))) + 5] ^= 1
    (path / "optimizer.pt").write_bytes(damaged)
    finding = only(tmp_path)
    assert finding.whole is False
    assert "optimizer.pt" in finding.said


def test_random_states_of_other_ranks_may_come_after_the_witness(tmp_path):
    """Other ranks finish by themselves: their files do not make the witness stale."""
    files = hf_files(20)
    files["rng_state_0.pth"] = files.pop("rng_state.pth")
    files["trainer_state.json"] = files.pop("trainer_state.json")
    files["rng_state_1.pth"] = torch_zip()
    write_files(tmp_path / "checkpoint-20", files)
    assert only(tmp_path).whole is True


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(**changes: bytes | None) -> dict[str, bytes]:
    files = hf_files(20)
    witness = files.pop("trainer_state.json")
    del files["model.safetensors"]
    files[SHARDS[0]], files[SHARDS[1]] = safetensors(("a",)), safetensors(("b",))
    weights = {"a": SHARDS[0], "b": SHARDS[1]}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weights}).encode()
    files.update({name: content for name, content in changes.items() if content is not None})
    for name in [name for name, content in changes.items() if content is None]:
        del files[name]
    files["trainer_state.json"] = witness
    return files


@pytest.mark.parametrize(
    ("changes", "whole", "why"),
    [
        ({}, True, "agree"),
        ({SHARDS[1]: None}, False, f"shard {SHARDS[1]} is missing"),
        ({SHARDS[1]: safetensors(("b",))[:-1]}, False, "describes"),
        ({SHARDS[1]: safetensors(("c",))}, False, "tensor 'b' is not in it"),
        ({"model.safetensors.index.json": None}, False, "weights are missing"),
        ({"model.safetensors.index.json": b"{"}, False, "does not parse"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}'},
            False,
            "outside of its directory",
        ),
    ],
)
def test_every_shard_of_the_index_is_there_and_right(tmp_path, changes, whole, why):
    """Sharded weights are whole only with all shards, each with its tensors."""
    write_files(tmp_path / "checkpoint-20", sharded(**changes))
    finding = only(tmp_path)
    assert finding.whole is whole
    assert why in finding.said


def test_sharded_pytorch_weights_need_every_shard(tmp_path):
    """The index of pytorch_model shards is held against the files, too."""
    files = hf_files(20)
    witness = files.pop("trainer_state.json")
    del files["model.safetensors"]
    files["pytorch_model-00001-of-00002.bin"] = torch_zip()
    weights = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": weights}).encode()
    files["trainer_state.json"] = witness
    write_files(tmp_path / "checkpoint-20", files)
    assert "pytorch_model-00002-of-00002.bin" in only(tmp_path).said


def test_engine_state_without_its_pointer_is_partial(tmp_path):
    """DeepSpeed loads what `latest` names, and nothing without it."""
    path = write_hf(tmp_path, 20, model__safetensors=None, optimizer__pt=None)
    (path / "global_step20").mkdir()
    (path / "global_step20" / "mp_rank_00_model_states.pt").write_bytes(torch_zip())
    finding = only(tmp_path)
    assert finding.whole is False
    assert "latest does not name global_step20" in finding.said


def test_an_adapter_without_its_settings_is_partial(tmp_path):
    """PEFT cannot load adapter_model.safetensors without adapter_config.json beside it."""
    files = {"model__safetensors": None, "adapter_model__safetensors": safetensors()}
    write_hf(tmp_path, 20, **files)
    assert only(tmp_path).whole is False
    write_hf(tmp_path, 20, **files, adapter_config__json=b"{}")
    # Written after the witness here: looked at in depth, and not called whole.
    assert only(tmp_path).whole is None


def test_a_foreign_directory_of_that_name_is_not_judged(tmp_path):
    """checkpoint-5 of another program is no Trainer checkpoint; its files stand for themselves."""
    write_files(tmp_path / "checkpoint-5", {"state.pt": torch_zip()})
    finding = only(tmp_path)
    assert (finding.format, finding.whole) == ("torch", True)


def test_temporary_directories_are_partial(tmp_path):
    """tmp-checkpoint-N is a save that has not finished, whatever is in it."""
    write_files(tmp_path / "tmp-checkpoint-7", hf_files(7))
    assert only(tmp_path).whole is False


@pytest.mark.slow
def test_what_the_real_trainer_writes_is_whole(tmp_path):
    """All saves of a real tiny Trainer are whole, newest first, and a cut copy is not."""
    run_command([sys.executable, "-c", TINY_TRAINER, str(tmp_path)], timeout_s=120)
    for out in ("everything", "model-only"):
        findings = look(tmp_path / out, level="full")
        assert [(finding.step, finding.whole) for finding in findings] == [(4, True), (2, True)]
    copy = tmp_path / "copy" / "checkpoint-4"
    shutil.copytree(tmp_path / "everything" / "checkpoint-4", copy)
    assert only(tmp_path / "copy").whole is True
    (copy / "optimizer.pt").unlink()
    assert only(tmp_path / "copy").whole is False


def test_every_prefix_of_a_save_is_partial(tmp_path):
    """A kill between any two files of a save leaves a partial checkpoint."""
    files = hf_files(20)
    for count in range(len(files)):
        directory = tmp_path / str(count) / "checkpoint-20"
        write_files(directory, dict(list(files.items())[:count]))
        assert only(Path(tmp_path / str(count))).whole is False
