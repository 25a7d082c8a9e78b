"""Real saves of torch.distributed.checkpoint and accelerate, and pickles that are read as data."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint_samples import look, only
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


class StorageInfo:
    def __init__(self, name: str) -> None:
        self.relative_path, self.offset, self.length = name, 0, 5


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "..", "a/b"])
def test_metadata_that_points_elsewhere_is_refused(name: str) -> None:
    piece = pickle_data.read(pickle.dumps(StorageInfo(name)))
    with pytest.raises(DamagedError, match="outside of its directory"):
        dcp._stored(piece)


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch bombed",))


def test_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    data = pickle.dumps(value, protocol)
    hypothesis.assume(protocol >= 3 or not any(word in data for word in BYTES_BY_A_CALL))
    assert repr(pickle_data.read(data)) == repr(pickle.loads(data))
