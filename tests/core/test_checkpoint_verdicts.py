"""Which checkpoints are valid, format by format: one rule a line, and the words of each verdict."""

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
    NOT_MODEL_ONLY,
    hf_files,
    lightning_zip,
    look,
    only,
    safetensors,
    timm_zip,
    torch_zip,
    ultralytics_zip,
    write_files,
    write_hf,
)
from tests.support import run_command

CUT = torch_zip()[:-9]
Files = dict[str, bytes]
Case = tuple[Files, bool | None, str] | tuple[Files, bool | None, str, int]
"""Files, whether the newest checkpoint is valid, a part of the reason, and the number of ranks."""


def changed(folder: str, files: Files, changes: dict[str, bytes | None], last: str) -> Files:
    """Files of a folder, with others in their places, oldest first; None takes one away."""
    found = files | changes
    found[last] = found.pop(last)
    return {f"{folder}/{name}": data for name, data in found.items() if data is not None}


def hf(changes: dict[str, bytes | None], folder: str = "checkpoint-20") -> Files:
    return changed(folder, hf_files(20), changes, "trainer_state.json")


def without(*names: str) -> dict[str, bytes | None]:
    return dict.fromkeys(names)


def model_only(data: bytes | None, *kept: str) -> dict[str, bytes | None]:
    missing = {"optimizer.pt", "scheduler.pt", "rng_state.pth"} - {*kept}
    return {"training_args.bin": data and torch_zip(pickle=data), **without(*missing)}


def ranks(*numbers: int) -> dict[str, bytes | None]:
    return {"rng_state.pth": None, **{f"rng_state_{n}.pth": torch_zip() for n in numbers}}


ADAPTER = {"model.safetensors": None, "adapter_model.safetensors": safetensors()}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
WEIGHTS = json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode()
OUTSIDE = b'{"weight_map": {"a": "../x.safetensors"}}'
SHARDED: dict[str, bytes | None] = {
    SHARDS[0]: safetensors(("a",)), SHARDS[1]: safetensors(("b",)), INDEX: WEIGHTS,
}  # fmt: skip
BIN = [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
BINS = {BIN[0]: torch_zip(), "pytorch_model.bin.index.json": json.dumps(
    {"weight_map": dict(zip("ab", BIN, strict=True))}).encode()}  # fmt: skip
NO_WEIGHTS = without("model.safetensors")

HF: dict[str, Case] = {
    "complete": (hf({}), True, "trainer state, weights and resume set agree"),
    "no witness": (hf(without("trainer_state.json")), False, "trainer_state.json is missing"),
    "witness of another step":
        (hf({"trainer_state.json": b'{"global_step": 10}\n'}), False, "says step 10"),
    "witness with a bool":
        (hf({"trainer_state.json": b'{"global_step": true}\n'}), False, "says step True"),
    "witness cut": (hf({"trainer_state.json": b'{"global_st'}), False, "does not parse"),
    "witness is a list": (hf({"trainer_state.json": b"[]\n"}), False, "says step None"),
    "witness nests deep": (hf({"trainer_state.json": b"[" * 200_000}), False, "does not parse"),
    "witness without its newline": (hf({"trainer_state.json": b'{"global_step": 20}'}), True, ""),
    "no weights": (hf(NO_WEIGHTS), False, "weights are missing"),
    "no optimizer": (hf(without("optimizer.pt")), False, "optimizer.pt is missing"),
    "no scheduler": (hf(without("scheduler.pt")), False, "scheduler.pt is missing"),
    "no random state": (hf(without("rng_state.pth")), False, "rng_state.pth is missing"),
    "empty optimizer": (hf({"optimizer.pt": b""}), False, "optimizer.pt: the file is empty"),
    "cut optimizer": (hf({"optimizer.pt": CUT}), False, "optimizer.pt: cut short"),
    "zeros for weights": (hf({"model.safetensors": bytes(99)}), False, "model.safetensors"),
    "marker": (hf({"checkpoint-is-incomplete.txt": b""}), False, "has not finished"),
    "temporary file": (hf({"model.safetensors.tmp": b"x"}), False, "still being written"),
    "broken config": (hf({"config.json": b"{"}), False, "config.json"),
    "temporary directory": (hf({}, "tmp-checkpoint-20"), False, "has not finished"),
    "old pickle in it": (hf({"scheduler.pt": LEGACY}), None, "scheduler.pt: an old pickle"),
    "model only": (hf(model_only(MODEL_ONLY)), True, "model only"),
    "model, not by its arguments": (hf(model_only(NOT_MODEL_ONLY)), False, "is missing"),
    "model without arguments": (hf(model_only(None)), None, "does not tell"),
    "model only, with an optimizer":
        (hf(model_only(MODEL_ONLY, "optimizer.pt")), False, "scheduler.pt is missing"),
    "two ranks": (hf(ranks(0, 1)), True, ""),
    "a rank between": (hf(ranks(0, 2)), False, "rng_state_1.pth is missing: 2 of 3 ranks"),
    "no first rank": (hf(ranks(1)), False, "rng_state_0.pth is missing"),
    "one numbered rank": (hf(ranks(0)), False, "rng_state_1.pth is missing"),
    "half of the ranks": (hf(ranks(0, 1)), False, "2 of 4 ranks", 4),
    "all ranks": (hf(ranks(0, 1, 2, 3)), True, "", 4),
    "more ranks than now": (hf(ranks(0, 1, 2, 3)), True, "", 2),
    "shards": (hf(NO_WEIGHTS | SHARDED), True, "agree"),
    "a shard missing":
        (hf(NO_WEIGHTS | SHARDED | without(SHARDS[1])), False, f"{SHARDS[1]} is missing"),
    "a shard cut":
        (hf(NO_WEIGHTS | SHARDED | {SHARDS[1]: safetensors(("b",))[:-1]}), False, "describes"),
    "a shard of other tensors": (hf(NO_WEIGHTS | SHARDED | {SHARDS[1]: safetensors(("c",))}),
        False, "tensor 'b' is not in it"),
    "shards without index":
        (hf(NO_WEIGHTS | SHARDED | without(INDEX)), False, "weights are missing"),
    "index cut": (hf(NO_WEIGHTS | SHARDED | {INDEX: b"{"}), False, "does not parse"),
    "index that leads outside":
        (hf(NO_WEIGHTS | SHARDED | {INDEX: OUTSIDE}), False, "outside of its directory"),
    "a shard of torch missing": (hf(NO_WEIGHTS | BINS), False, BIN[1]),
    "adapter without settings": (hf(ADAPTER), False, "adapter_config.json is missing beside"),
    "adapter": (hf(ADAPTER | {"adapter_config.json": b"{}"}), True, ""),
}  # fmt: skip


def accelerate(changes: dict[str, bytes | None], count: int = 1) -> Files:
    files = {"model.safetensors": safetensors(), "optimizer.bin": torch_zip()}
    files |= {f"random_states_{rank}.pkl": torch_zip() for rank in reversed(range(count))}
    return changed("checkpoints/checkpoint_3", files, changes, "random_states_0.pkl")


ACCELERATE: dict[str, Case] = {
    "complete": (accelerate({}), True, "weights, optimizer and random states agree"),
    "no witness":
        (accelerate(without("random_states_0.pkl")), False, "random_states_0.pkl is missing"),
    "no weights": (accelerate(NO_WEIGHTS), False, "the weights are missing"),
    "cut weights":
        (accelerate({"model.safetensors": safetensors()[:-1]}), False, "model.safetensors"),
    "cut optimizer": (accelerate({"optimizer.bin": CUT}), False, "optimizer.bin: cut short"),
    "empty witness": (accelerate({"random_states_0.pkl": b""}), False, "the file is empty"),
    "temporary file": (accelerate({"model.safetensors.tmp": b"x"}), False, "still being written"),
    "no optimizer": (accelerate(without("optimizer.bin")), None, "it holds no optimizer"),
    "all ranks": (accelerate({}, 2), True, "", 2),
    "half of the ranks": (accelerate({}, 2), False, "2 of 4 ranks", 4),
}  # fmt: skip


def shard(rank: int) -> str:
    return f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


MODEL = "mp_rank_00_model_states.pt"
TAG: dict[str, bytes | None] = {MODEL: torch_zip(), shard(0): torch_zip(), shard(1): torch_zip()}


def deepspeed(changes: dict[str, bytes | None], latest: bytes | None = b"global_step20") -> Files:
    files = changed("global_step20", {}, TAG | changes, MODEL)
    return files if latest is None else files | {"latest": latest}


def trainer_with(changes: dict[str, bytes | None], latest: bytes | None) -> Files:
    inside = {f"global_step20/{name}": data for name, data in (TAG | changes).items()}
    return hf({**without("optimizer.pt", "scheduler.pt"), **inside, "latest": latest})


DEEPSPEED: dict[str, Case] = {
    "complete": (deepspeed({}), True, "all 2 optimizer shards and the model are there", 2),
    "no rank 1": (deepspeed(without(shard(1))), False, "rank 1 (model part 0)", 2),
    "no model": (deepspeed(without(MODEL)), False, "model states are missing"),
    "cut shard": (deepspeed({shard(1): CUT}), False, "cut short", 2),
    "small shard": (deepspeed({shard(1): b"PK\x03\x04"}), False, "cut short", 2),
    "pointer empty": (deepspeed({}, b""), True, ""),
    "pointer that leads outside": (deepspeed({}, b"../../x"), True, ""),
    "pointer binary": (deepspeed({}, b"\x00\xff"), True, ""),
    "pointer of a newer tag": (deepspeed({}, b"global_step99"), True, ""),
    "pointer of an older tag":
        (deepspeed({}, b"global_step10"), False, "latest still names global_step10"),
}  # fmt: skip
ENGINE: dict[str, Case] = {
    "engine inside": (trainer_with({}, b"global_step20"), True, ""),
    "engine without its pointer":
        (trainer_with({}, None), False, "latest does not name global_step20"),
    "engine without a rank": (trainer_with(without(shard(0)), b"global_step20"), False,
        "global_step20: the optim states of rank 0"),
}  # fmt: skip


def megatron(tracker: bytes | None, parts: tuple[int, ...] = (0, 1), data: bytes = b"") -> Files:
    where = "iter_0000020/mp_rank_{:02d}/model_optim_rng.pt"
    files = {where.format(part): data or torch_zip() for part in parts}
    name = "latest_checkpointed_iteration.txt"
    return files if tracker is None else files | {name: tracker}


def distributed(files: Files) -> Files:
    files = {"common.pt": torch_zip(), "__0_0.distcp": b"x" * 5, **files}
    return {f"iter_0000020/{name}": data for name, data in files.items()}


ALL = "all 2 model parts"
MEGATRON: dict[str, Case] = {
    "tracked": (megatron(b"20"), True, ALL),
    "a later one tracked": (megatron(b"30"), True, ALL),
    "released": (megatron(b"release"), True, ALL),
    "not tracked": (megatron(None), True, ALL),
    "an older one tracked": (megatron(b"10"), False, "still names iteration 10"),
    "tracker empty": (megatron(b""), True, "has to be corrected by hand"),
    "tracker damaged": (megatron(b"1x"), True, "has to be corrected by hand"),
    "a part missing": (megatron(b"20", (0, 2)), False, "tensor part 1"),
    "old pickle": (megatron(b"20", data=LEGACY), None, "an old pickle"),
    "distributed, no witness": (distributed({}), False, "metadata.json is missing"),
    "distributed, no metadata": (distributed(
        {"metadata.json": b'{"sharded_backend": "torch_dist"}'}), False, ".metadata is missing"),
    "distributed, of another kind":
        (distributed({"metadata.json": b'{"sharded_backend": "zarr"}'}), None, "zarr"),
    "distributed, of no kind": (distributed({"metadata.json": b'["no"]'}), False, "describe"),
}  # fmt: skip
TORCH: dict[str, Case] = {
    "complete": ({"model.pt": torch_zip()}, True, "entries in place"),
    "old pickle": ({"model.pt": LEGACY}, None, "old pickle"),
    "empty": ({"model.pt": b""}, False, "empty"),
    "zeros": ({"model.pt": bytes(500)}, False, "zeros"),
    "two bytes": ({"model.pt": b"PK"}, False, "first bytes"),
    "something else": ({"model.pt": b"hello, this is something else"}, None, "foreign"),
    "bytes behind it": ({"model.pt": torch_zip() + b"more"}, False, "does not end"),
    "no directory": ({"model.pt": b"PK\x03\x04" + bytes(100)}, False, "cut short or damaged"),
    # Of the right size, as a power loss leaves it.
    "zeros at its end": ({"model.pt": torch_zip()[:-40] + bytes(40)}, False, "cut short"),
    "temporary name": ({"model.pt.tmp": torch_zip()}, False, "by its name"),
    "in a folder called like a Trainer's": ({"checkpoint-5/state.pt": torch_zip()}, True, ""),
    "in a folder called like Megatron's":
        ({"iter_0000020/weights.pt": torch_zip(), "iter_0000020/notes.txt": b"x"}, True, ""),
    "called like Lightning's": ({"m.ckpt": torch_zip(), ".lr_find_1.ckpt": b""}, True, ""),
    "weights alone of Lightning": ({"b.ckpt": lightning_zip(9, weights_only=True)}, True, ""),
    "called like timm's": ({"last.pth.tar": torch_zip()}, True, ""),
}  # fmt: skip


def header(text: bytes, data: bytes = b"") -> Files:
    return {"model.safetensors": len(text).to_bytes(8, "little") + text + data}


def tensor(shape: str, offsets: str, data: bytes = b"") -> Files:
    text = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'
    return header(text.encode(), data)


INDEXED = {"step-7/" + name: data for name, data in SHARDED.items() if data is not None}
SAFETENSORS: dict[str, Case] = {
    "no tensor": (header(b"{}"), True, "0 tensors"),
    "a byte too many": (header(b"{}", b"x"), False, "describes"),
    "no table": (header(b"[]"), False, "not a table"),
    "gap": (tensor("[1]", "[4, 8]", bytes(8)), False, "gap"),
    "other shape": (tensor("[3]", "[0, 8]", bytes(8)), False, "disagree"),
    "bool for a number": (tensor("[2]", "[0, true]"), False, "wrong at tensor"),
    "no shape": (tensor("null", "[0, 8]"), False, "wrong at tensor"),
    "giant header": ({"a.safetensors": (2**63).to_bytes(8, "little") + b"{}"}, False, "cut short"),
    "nests deep": (header(b"[" * 100_000), False, "does not parse"),
    "index": (INDEXED, True, "all 2 shards are there"),
    "no index": ({name: INDEXED[name] for name in list(INDEXED)[:2]}, False, "without an index"),
    "a shard after the index": (dict(reversed(INDEXED.items())), None, "older than"),
    "in a numbered folder": ({"epoch_3/model.safetensors": safetensors()}, True, ""),
}  # fmt: skip
OTHERS: dict[str, dict[str, Case]] = {
    "lightning": {
        "complete": ({"epoch=3-val_loss=0.25.ckpt": lightning_zip(7)}, True, ""),
        # Lightning below 2.1 writes in place; the beginning tells what it would have been.
        "cut": ({"last.ckpt": lightning_zip(20)[:-200]}, False, "cut short"),
        "of a batch system": ({"hpc_ckpt_1.ckpt": lightning_zip(6)}, True, ""),
    },
    "timm": {
        "complete": ({"last.pth.tar": timm_zip(4)}, True, ""),
        "temporary name": ({"recovery_tmp.pth.tar": timm_zip(4)}, False, "has not finished"),
    },
    "ultralytics": {
        "complete": ({"best.pt": ultralytics_zip(5)}, True, ""),
        "cut": ({"last.pt": ultralytics_zip(7)[:-30]}, False, "cut short"),
        "ended": ({"last.pt": ultralytics_zip(9, stripped=True)}, False, "stripped"),
    },
}  # fmt: skip
FORMATS = {
    "hf": HF | ENGINE, "accelerate": ACCELERATE, "deepspeed": DEEPSPEED, "megatron": MEGATRON,
    "torch": TORCH, "safetensors": SAFETENSORS, **OTHERS,
}  # fmt: skip
CASES = [
    pytest.param(name, case, id=f"{name}: {what}")
    for name, cases in FORMATS.items()
    for what, case in cases.items()
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_whether_a_checkpoint_is_valid_and_why(tmp_path: Path, name: str, case: Case) -> None:
    files, whole, why, *world_size = case
    write_files(tmp_path, files)
    finding = only(tmp_path, world_size=next(iter(world_size), None))
    assert (finding.format, finding.whole) == (name, whole), finding.said
    assert why in finding.said


def test_a_complete_save_is_valid_at_both_levels(tmp_path: Path) -> None:
    path = write_hf(tmp_path, 20)
    write_files(tmp_path / "deep", deepspeed({}))
    for level in ("quick", "full"):
        found, deep = look(tmp_path, level=level)
        assert (found.path, found.format, found.step, found.whole) == (str(path), "hf", 20, True)
        assert (deep.format, deep.step, deep.whole) == ("deepspeed", 20, True)
        assert (found.how_checked, deep.how_checked) == (level, level)


def test_parts_and_data_sets_are_no_checkpoints(tmp_path: Path) -> None:
    """Optimizer files, pickled arguments and .bin data sets are not offered to resume from."""
    parts = dict.fromkeys(("optimizer.pt", "training_args.bin", "rng_state.pth"), torch_zip())
    write_files(tmp_path, parts | {"train.bin": bytes(range(256)), "notes.txt": b"x"})
    assert look(tmp_path) == ()


def test_a_stale_witness_is_a_doubt_and_an_older_clean_one_is_preferred(tmp_path: Path) -> None:
    """A save that began over a complete directory leaves its old witness: not called whole."""
    write_hf(tmp_path, 10)
    newer = write_hf(tmp_path, 20)
    os.utime(newer / "model.safetensors", (2_000_000, 2_000_000))
    suspect, clean = look(tmp_path)
    assert (suspect.step, suspect.whole, suspect.how_checked) == (20, None, "full")
    assert "older than model.safetensors" in suspect.said
    assert (clean.step, clean.whole) == (10, True)


def test_damage_under_a_stale_witness_is_found_at_level_quick(tmp_path: Path) -> None:
    """A doubt is looked into: checksums are read although only a quick look was asked for."""
    path = write_hf(tmp_path, 20)
    damaged = bytearray(torch_zip())
    damaged[damaged.index(bytes(range(64))) + 5] ^= 1
    (path / "optimizer.pt").write_bytes(damaged)
    finding = only(tmp_path)
    assert finding.whole is False
    assert "optimizer.pt" in finding.said


def test_random_states_of_other_ranks_may_come_after_the_witness(tmp_path: Path) -> None:
    """Other ranks finish by themselves: their files do not make the witness stale."""
    write_files(tmp_path, hf(ranks(0)) | {"checkpoint-20/rng_state_1.pth": torch_zip()})
    assert only(tmp_path).whole is True


def test_a_state_that_has_just_begun_is_known_by_its_siblings(tmp_path: Path) -> None:
    """Weights alone in step_20 beside a full step_10 are a half-written state, not weights."""
    older = {Path(name).name: data for name, data in accelerate({}).items()}
    write_files(tmp_path / "step_10", older)
    write_files(tmp_path / "step_20", {"model.safetensors": safetensors()}, at_s=2e6)
    told = [(one.format, one.step, one.whole) for one in look(tmp_path)]
    assert told == [("accelerate", 20, False), ("accelerate", 10, True)]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("step", [0, 7, 300, 70_000, 2**40])
def test_the_step_is_read_without_unpickling(tmp_path: Path, protocol: int, step: int) -> None:
    """Whatever the protocol of the pickle; what it would call is not called."""
    content = lightning_zip(step, protocol=protocol, bomb=Bomb(tmp_path / "boom"))
    write_files(tmp_path / "out", {"epoch=3-val_loss=0.25.ckpt": content})
    assert only(tmp_path / "out", level="full").step == step
    assert not (tmp_path / "boom").exists()


class Bomb:
    """Unpickled it would leave a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def test_saved_without_checksums_is_not_called_damaged(tmp_path: Path) -> None:
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


def test_what_real_libraries_write(tmp_path: Path) -> None:
    """torch.save in both formats and safetensors with odd types, at both levels."""
    import torch
    from safetensors.torch import save_file

    state = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.tensor(1), "c": torch.empty(0)}
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "weights.safetensors", metadata={"step": "1"})
    for level in ("quick", "full"):
        told = {Path(one.path).name: (one.format, one.whole) for one in look(tmp_path, level=level)}
        assert told == {
            "new.pt": ("torch", True),
            "old.pt": ("torch", None),
            "weights.safetensors": ("safetensors", True),
        }


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


@pytest.mark.slow
def test_what_the_real_trainer_writes_is_whole(tmp_path: Path) -> None:
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
