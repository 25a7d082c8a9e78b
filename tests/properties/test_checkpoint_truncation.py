"""Whatever is cut off or flipped, a damaged checkpoint is not called whole."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint_samples import (
    LEGACY,
    hf_files,
    lightning_zip,
    look,
    safetensors,
    torch_zip,
    write_files,
)

SINGLE = {
    "model.pt": torch_zip(),
    "model.safetensors": safetensors(),
    "model.pth": LEGACY,
    "last.ckpt": lightning_zip(3),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "last.ckpt" else name
        for name in SINGLE
    ],
)
@pytest.mark.parametrize("level", ["quick", "full"])
def test_no_cut_of_a_single_file_is_whole(tmp_path, name, level):
    """Every byte cut is partial or unknown; the complete zip and header are whole."""
    content = SINGLE[name]
    for length in range(len(content)):
        (tmp_path / name).write_bytes(content[:length])
        assert all(item.whole is not True for item in look(tmp_path, level=level)), length
    (tmp_path / name).write_bytes(content)
    (finding,) = look(tmp_path, level=level)
    assert finding.whole is (None if name == "model.pth" else True)


@pytest.mark.parametrize("name", sorted(set(hf_files(3)) - {"config.json"}))
def test_no_cut_of_any_file_of_a_trainer_checkpoint_is_whole(tmp_path, name):
    """Every byte cut of every file makes the directory partial; its times do not give it away."""
    files = hf_files(3)
    path = write_files(tmp_path / "checkpoint-3", files)
    content = files[name]
    times = (path / name).stat()
    for length in range(len(content.rstrip(b"\n"))):  # JSON is complete without its last newline
        (path / name).write_bytes(content[:length])
        os.utime(path / name, ns=(times.st_atime_ns, times.st_mtime_ns))
        (finding,) = look(tmp_path)
        assert finding.whole is False, length


def test_no_cut_of_an_index_is_whole(tmp_path):
    """Every byte cut of an index or a shard makes sharded weights partial."""
    shard = "model-00001-of-00001.safetensors"
    files = {
        shard: safetensors(("a",)),
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": shard}}).encode(),
    }
    for name, content in files.items():
        for length in range(len(content)):
            write_files(tmp_path, files)
            (tmp_path / name).write_bytes(content[:length])
            (finding,) = look(tmp_path)
            assert finding.whole is False, (name, length)


def data_bytes(content: bytes) -> list[int]:
    """Positions of the bytes that checksums of a zip cover."""
    positions = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            begin = member.header_offset + 30 + len(member.filename.encode())
            positions += range(begin, begin + member.file_size)
    return positions


ZIP = torch_zip(bytes(range(256)) * 2)
COVERED = data_bytes(ZIP)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.sampled_from(COVERED), bit=st.integers(0, 7))
def test_the_full_level_sees_every_flipped_bit_of_the_data(tmp_path: Path, position, bit):
    """One flipped bit under a checksum is found at level full."""
    content = bytearray(ZIP)
    content[position] ^= 1 << bit
    (tmp_path / "model.pt").write_bytes(content)
    (finding,) = look(tmp_path, level="full")
    assert finding.whole is False


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(list(SINGLE)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=8),
)
def test_garbage_is_answered_and_never_raises(tmp_path: Path, name, flips):
    """Whatever is in a file, the survey answers with a reason."""
    content = bytearray(SINGLE[name])
    for position, mask in flips:
        content[position % len(content)] ^= mask
    (tmp_path / name).write_bytes(content)
    for finding in look(tmp_path, level="full"):
        assert finding.said
    (tmp_path / name).unlink()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["a", "dtype", "shape", "data_offsets", "__metadata__"]),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_header_of_safetensors_is_answered(tmp_path: Path, header):
    """A header of any shape is judged, not believed."""
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    for finding in look(tmp_path):
        assert finding.said
