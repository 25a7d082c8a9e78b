"""Checkpoints in several files: DCP, accelerate, DeepSpeed, Megatron; one rule a line."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint_samples import (
    LEGACY,
    hf_files,
    look,
    only,
    safetensors,
    torch_zip,
    write_files,
)
from tests.support import run_command
from watchdog_train.checkpoints import dcp
from watchdog_train.checkpoints.disk import DamagedError
from watchdog_train.core import pickle_data

REAL_SAVES = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

out = sys.argv[1]
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7}
dcp.save(state, checkpoint_id=f"{out}/titan/checkpoint/step-7")
project = ProjectConfiguration(project_dir=f"{out}/acc", automatic_checkpoint_naming=True)
accelerator = Accelerator(cpu=True, project_config=project)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
loader = torch.utils.data.DataLoader(torch.ones(4, 8))
model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
accelerator.save_state()
accelerator.save_state()
Accelerator(cpu=True).save_state(f"{out}/by-name/step_30")
"""
LATE_S = 2_000_000.0
BYTES_BY_A_CALL = (b"_codecs", b"__builtin__")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves of the installed torch and accelerate."""
    out = tmp_path_factory.mktemp("real")
    run_command([sys.executable, "-W", "ignore", "-c", REAL_SAVES, str(out)], timeout_s=120)
    return out


def test_real_saves_are_whole_at_both_levels(real: Path) -> None:
    """What the libraries write is found, in their order, and whole."""
    for level in ("quick", "full"):
        titan = only(real / "titan", level=level)
        assert (titan.format, titan.step, titan.whole) == ("dcp", 7, True), titan
        assert titan.how_checked == level
        states = look(real / "acc", level=level)
        assert [os.path.basename(item.path) for item in states] == ["checkpoint_1", "checkpoint_0"]
        assert {(item.format, item.whole, item.step) for item in states} == {
            ("accelerate", True, None)
        }
    named = only(real / "by-name")
    assert (named.format, named.step) == ("accelerate", 30)


def test_a_cut_or_flipped_shard_of_dcp_is_found(real: Path, tmp_path: Path) -> None:
    """Every size is compared; a flipped bit is found at level full."""
    copy = shutil.copytree(real / "titan", tmp_path / "titan")
    shard = next((copy / "checkpoint/step-7").glob("*.distcp"))
    content = shard.read_bytes()
    flip = content.index(b"_rebuild_tensor")  # inside of an entry: checksums do not cover padding
    for damaged, level, why in (
        (content[:-1], "quick", "bytes where .metadata tells of"),
        (b"", "quick", "has 0 bytes"),
        (content[:flip] + bytes([content[flip] ^ 4]) + content[flip + 1 :], "full", "Bad CRC-32"),
    ):
        shard.write_bytes(damaged)
        os.utime(shard, (1, 1))
        finding = only(copy, level=level)
        assert finding.whole is False, (why, finding)
        assert why in finding.said
    shard.unlink()
    assert "is missing, which .metadata names" in only(copy).said


@pytest.mark.slow
def test_every_cut_of_the_metadata_is_not_whole(real: Path, tmp_path: Path) -> None:
    """The witness is read to its end; without it the save has not finished."""
    copy = shutil.copytree(real / "titan", tmp_path / "titan")
    witness = copy / "checkpoint/step-7/.metadata"
    content = witness.read_bytes()
    for length in range(0, len(content), 7):
        witness.write_bytes(content[:length])
        assert only(copy).whole is not True, length
    witness.unlink()
    assert "is missing, which is written last" in only(copy).said


def test_a_save_over_an_older_dcp_directory_is_in_doubt(real: Path, tmp_path: Path) -> None:
    """The old metadata fits the new shards by size; its age gives it away."""
    copy = shutil.copytree(real / "titan", tmp_path / "titan")
    shard = next((copy / "checkpoint/step-7").glob("*.distcp"))
    os.utime(shard, (LATE_S * 1000, LATE_S * 1000))
    finding = only(copy)
    assert finding.whole is None
    assert "older than" in finding.said


def test_metadata_that_points_elsewhere_is_refused() -> None:
    """A file name from a pickle never leaves the directory."""

    def metadata(name: str) -> bytes:
        return b"".join(
            (
                b"\x80\x04",
                b"cmodule\nMetadata\n)\x81}\x8c\x0cstorage_data}K\x01",
                b"cmodule\n_StorageInfo\n)\x81}(\x8c\x0drelative_path",
                b"\x8c" + bytes([len(name)]) + name.encode(),
                b"\x8c\x06offsetK\x00\x8c\x06lengthK\x05ubs",
                b"sb.",
            )
        )

    for name in ("../../etc/passwd", "", "..", "a/b"):
        value = pickle_data.read(metadata(name))
        with pytest.raises(DamagedError, match="outside of its directory"):
            dcp._stored(next(iter(value.state["storage_data"].values())))


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch bombed",))


def test_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pickle would call is told, not called."""
    monkeypatch.chdir(tmp_path)
    value = pickle_data.read(pickle.dumps({"x": Bomb(), "list": [1, (2, None, True)], "f": 1.5}))
    assert value["x"].by.name == "system"
    assert value["x"].arguments == ("touch bombed",)
    assert value["list"] == [1, (2, None, True)]
    assert not (tmp_path / "bombed").exists()


def test_a_pickle_that_is_no_plain_data_or_very_long_is_not_read() -> None:
    """Half of an answer would be a wrong one."""
    for content, most in ((b"\x80\x02\x82\x01.", 10), (pickle.dumps([1, 2, 3]), 3)):
        with pytest.raises(pickle_data.UnreadablePickleError):
            pickle_data.read(content, most)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    """Garbage is damaged or unreadable, and nothing else is raised."""
    for content in (data, pickle.dumps({"a": [1, 2, (3,)]})[:-2] + data):
        with contextlib.suppress(pickle_data.DamagedPickleError, pickle_data.UnreadablePickleError):
            pickle_data.read(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.sampled_from([0, 1, 2, 3, 4, 5]),
)
def test_plain_data_is_read_as_pickle_reads_it(value: object, protocol: int) -> None:
    """Lists, tuples, dictionaries and plain values come out as they went in."""
    data = pickle.dumps(value, protocol)
    hypothesis.assume(protocol >= 3 or not any(word in data for word in BYTES_BY_A_CALL))
    assert repr(pickle_data.read(data)) == repr(pickle.loads(data))


# -- accelerate -----------------------------------------------------------------------------------


def accelerate_files(ranks: int = 1) -> dict[str, bytes]:
    files = {
        "model.safetensors": safetensors(),
        "optimizer.bin": torch_zip(),
        "scheduler.bin": torch_zip(),
    }
    return files | {f"random_states_{rank}.pkl": torch_zip() for rank in range(ranks)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"random_states_0.pkl": None}, "random_states_0.pkl is missing"),
        ({"model.safetensors": None}, "the weights are missing"),
        ({"model.safetensors": safetensors()[:-1]}, "model.safetensors"),
        ({"optimizer.bin": torch_zip()[:-9]}, "optimizer.bin: cut short"),
        ({"random_states_0.pkl": b""}, "the file is empty"),
        ({"model.safetensors.tmp": b"x"}, "still being written"),
    ],
)
def test_a_partial_state_of_accelerate(tmp_path: Path, change, why) -> None:
    """What is missing or cut makes it partial, and the reason names it."""
    files = {
        name: data for name, data in {**accelerate_files(), **change}.items() if data is not None
    }
    write_files(tmp_path / "checkpoints/checkpoint_3", files)
    finding = only(tmp_path)
    assert finding.whole is False
    assert why in finding.said


@pytest.mark.parametrize(
    ("ranks", "world_size", "whole"), [(2, 2, True), (2, 4, False), (2, None, True)]
)
def test_every_rank_of_accelerate_has_saved(tmp_path: Path, ranks, world_size, whole) -> None:
    """As far as the world size is known."""
    write_files(tmp_path / "checkpoints/checkpoint_0", accelerate_files(ranks))
    assert only(tmp_path, world_size=world_size).whole is whole


def test_a_state_that_has_just_begun_is_known_by_its_siblings(tmp_path: Path) -> None:
    """Weights alone in step_20 beside a full step_10 are a half-written state, not weights."""
    write_files(tmp_path / "step_10", accelerate_files())
    write_files(tmp_path / "step_20", {"model.safetensors": safetensors()}, at_s=LATE_S)
    newest, older = look(tmp_path)
    assert (newest.format, newest.step, newest.whole) == ("accelerate", 20, False)
    assert (older.step, older.whole) == (10, True)


def test_weights_of_another_program_stay_weights(tmp_path: Path) -> None:
    """A directory with a number and weights is not of accelerate by that alone."""
    write_files(tmp_path / "epoch_3", {"model.safetensors": safetensors()})
    assert only(tmp_path).format == "safetensors"


def test_a_state_without_an_optimizer_is_unknown(tmp_path: Path) -> None:
    """Whether the training has one is not told by the files."""
    files = accelerate_files()
    del files["optimizer.bin"]
    write_files(tmp_path / "checkpoints/checkpoint_0", files)
    assert only(tmp_path).whole is None


# -- DeepSpeed ------------------------------------------------------------------------------------


def deepspeed_files(ranks: int = 2, prefix: str = "bf16_") -> dict[str, bytes]:
    shards = {
        f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_zip()
        for rank in range(ranks)
    }
    return {"mp_rank_00_model_states.pt": torch_zip(), **shards}


def write_deepspeed(root: Path, step: int, latest: str | None = None, **options) -> Path:
    path = write_files(root / f"global_step{step}", deepspeed_files(**options))
    if latest is not None:
        (root / "latest").write_text(latest)
    return path


def test_a_complete_save_of_deepspeed(tmp_path: Path) -> None:
    """All ranks' shards, the model, and the pointer agree."""
    write_deepspeed(tmp_path, 20, "global_step20")
    finding = only(tmp_path, level="full", world_size=2)
    assert (finding.format, finding.step, finding.whole) == ("deepspeed", 20, True)
    assert finding.how_checked == "full"


def test_the_pointer_of_deepspeed_lags_behind_a_save_that_was_killed(tmp_path: Path) -> None:
    """`latest` names step 10: step 20 had not finished, and 10 is the newest valid one."""
    write_deepspeed(tmp_path, 10)
    write_deepspeed(tmp_path, 20, "global_step10")
    newest, older = look(tmp_path)
    assert (newest.step, newest.whole) == (20, False)
    assert "latest still names global_step10" in newest.said
    assert (older.step, older.whole) == (10, True)


@pytest.mark.parametrize("pointer", ["", "../../x", "\x00\xff", "global_step99"])
def test_a_pointer_that_lies_is_not_believed(tmp_path: Path, pointer: str) -> None:
    """Empty, outside, binary, or of a tag that is newer: the files decide."""
    write_deepspeed(tmp_path, 20, pointer)
    assert only(tmp_path).whole is True


@pytest.mark.parametrize(
    ("name", "content", "world_size", "why"),
    [
        ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", None, 2, "rank 1 (model part 0)"),
        ("mp_rank_00_model_states.pt", None, None, "model states are missing"),
        ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", torch_zip()[:-5], 2, "cut short"),
        ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", b"PK\x03\x04", 2, "cut short"),
    ],
)
def test_a_partial_save_of_deepspeed(tmp_path: Path, name, content, world_size, why) -> None:
    """A missing or short shard is named."""
    path = write_deepspeed(tmp_path, 20, "global_step20")
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    finding = only(tmp_path, world_size=world_size)
    assert finding.whole is False
    assert why in finding.said


def test_deepspeed_inside_a_trainer_checkpoint_is_checked(tmp_path: Path) -> None:
    """The Trainer's directory is as whole as the shards in it."""
    files = hf_files(20)
    for name in ("optimizer.pt", "scheduler.pt"):
        del files[name]
    path = write_files(tmp_path / "checkpoint-20", files)
    write_files(path / "global_step20", deepspeed_files())
    os.utime(path / "trainer_state.json", (LATE_S, LATE_S))
    assert only(tmp_path).whole is False, "without its pointer DeepSpeed loads nothing"
    write_files(path, {"latest": b"global_step20"}, at_s=LATE_S)
    assert only(tmp_path).whole is True
    (path / "global_step20/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    finding = only(tmp_path)
    assert finding.whole is False
    assert "global_step20: the optim states of rank 0" in finding.said


# -- Megatron -------------------------------------------------------------------------------------


def write_megatron(root: Path, step: int, tracker: str | None, *, parts: int = 2) -> Path:
    path = root / f"iter_{step:07d}"
    for part in range(parts):
        write_files(path / f"mp_rank_{part:02d}", {"model_optim_rng.pt": torch_zip()})
    if tracker is not None:
        (root / "latest_checkpointed_iteration.txt").write_text(tracker)
    return path


@pytest.mark.parametrize(
    ("tracker", "whole", "why"),
    [
        ("20", True, "all 2 model parts"),
        ("30", True, "all 2 model parts"),
        ("release", True, "all 2 model parts"),
        (None, True, "all 2 model parts"),
        ("10", False, "still names iteration 10"),
        ("", True, "has to be corrected by hand"),
        ("1x", True, "has to be corrected by hand"),
    ],
)
def test_the_tracker_of_megatron(tmp_path: Path, tracker, whole, why) -> None:
    """It names the newest save that has ended; an empty one is said, and the files decide."""
    write_megatron(tmp_path, 20, tracker)
    finding = only(tmp_path)
    assert (finding.format, finding.step, finding.whole) == ("megatron", 20, whole)
    assert why in finding.said


def test_a_missing_part_of_megatron(tmp_path: Path) -> None:
    """Every tensor part holds the same files."""
    path = write_megatron(tmp_path, 20, "20", parts=3)
    (path / "mp_rank_01/model_optim_rng.pt").unlink()
    finding = only(tmp_path)
    assert finding.whole is False
    assert "tensor part 1" in finding.said


def test_the_distributed_format_of_megatron(tmp_path: Path) -> None:
    """metadata.json is written last; its shards are those of DCP."""
    path = tmp_path / "iter_0000020"
    files = {"common.pt": torch_zip(), "__0_0.distcp": b"x" * 5}
    write_files(path, files)
    assert "metadata.json is missing" in only(tmp_path).said
    write_files(path, files | {"metadata.json": b'{"sharded_backend": "torch_dist"}'})
    assert ".metadata is missing" in only(tmp_path).said
    write_files(path, {"metadata.json": b'{"sharded_backend": "zarr"}'})
    finding = only(tmp_path)
    assert finding.whole is None
    assert "zarr" in finding.said
    write_files(path, {"metadata.json": json.dumps(["no"]).encode()})
    assert only(tmp_path).whole is False


def test_old_pickles_make_a_part_unknown(tmp_path: Path) -> None:
    """What nothing can check is not called whole."""
    path = write_megatron(tmp_path, 20, "20")
    (path / "mp_rank_00/model_optim_rng.pt").write_bytes(LEGACY)
    assert only(tmp_path).whole is None


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    """A name alone is not enough."""
    write_files(tmp_path / "iter_0000020", {"notes.txt": b"x", "weights.pt": torch_zip()})
    assert only(tmp_path).format == "torch"
