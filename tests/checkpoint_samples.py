"""Small checkpoints made without torch, byte for byte of the shape that the libraries write."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core.model import CheckpointFinding, SaveRecord

LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + b"\x80\x02M\xe9\x03." * 8
NOT_MODEL_ONLY = b"\x80\x02}q\x00X\x0f\x00\x00\x00save_only_modelq\x01\x89s."
MODEL_ONLY = NOT_MODEL_ONLY.replace(b"\x89s", b"\x88s")


def torch_zip(data: bytes = bytes(range(64)), *, pickle: bytes = b"\x80\x02}q\x00.") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (
            ("data.pkl", pickle),
            ("byteorder", b"little"),
            ("data/0", data),
            ("version", b"3\n"),
        ):
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def safetensors(names: tuple[str, ...] = ("a", "b"), fill: bytes = b"\x01") -> bytes:
    header = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(names):
        span = [number * 16, number * 16 + 16]
        header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": span}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + fill * (16 * len(names))


def hf_files(step: int, *, arguments: bytes = NOT_MODEL_ONLY) -> dict[str, bytes]:
    """The files of a Trainer's checkpoint in the order in which they are written."""
    return {
        "config.json": b'{"model_type": "gpt2"}\n',
        "model.safetensors": safetensors(),
        "training_args.bin": torch_zip(pickle=arguments),
        "optimizer.pt": torch_zip(),
        "scheduler.pt": torch_zip(),
        "rng_state.pth": torch_zip(),
        "trainer_state.json": json.dumps({"global_step": step}).encode() + b"\n",
    }


def write_hf(
    parent: Path, step: int, *, at_s: float = 1_000_000.0, **changes: bytes | None
) -> Path:
    """A checkpoint-N directory; a change of None leaves a file out (dots written as __)."""
    files = hf_files(step)
    for name, content in changes.items():
        files.pop(name.replace("__", "."), None)
        if content is not None:
            files[name.replace("__", ".")] = content
    return write_files(parent / f"checkpoint-{step}", files, at_s=at_s)


def write_files(directory: Path, files: dict[str, bytes], *, at_s: float = 1_000_000.0) -> Path:
    """Write files whose times lie a millisecond apart, in the order given."""
    for number, (name, content) in enumerate(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (at_s, at_s + number * 0.001))
    return directory


def noted(path: Path, kind: str = "torch", **fields: Any) -> SaveRecord:
    """As the hook inside a training notes it now."""
    folder = path if path.is_dir() else path.parent
    items = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = {
        item.relative_to(folder).as_posix(): (item.stat().st_size, item.stat().st_mtime_ns)
        for item in items
        if item.is_file()
    }
    return SaveRecord(path=str(path), format=kind, files=files, **fields)


def look(directory: Path, **options: object) -> tuple[CheckpointFinding, ...]:
    """The findings below a directory in which nobody writes."""
    options.setdefault("settle_s", 0.0)
    options.setdefault("check", "all")
    return survey(SurveyRequest(directories=(str(directory),), **options)).findings


def only(directory: Path, **options: object) -> CheckpointFinding:
    (finding,) = look(directory, **options)
    return finding


def lightning_zip(
    step: int, *, weights_only: bool = False, protocol: int = 2, **more: Any
) -> bytes:
    """A checkpoint as Lightning's dump_checkpoint orders it."""
    content: dict[str, Any] = {
        "epoch": 1,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {f"layer.{number}": number for number in range(300)},
        "loops": {},
    }
    if not weights_only:
        content |= {"callbacks": {}, "optimizer_states": [{}], "lr_schedulers": []}
    return torch_zip(pickle=pickle.dumps(content | more, protocol=protocol))


def timm_zip(epoch: int) -> bytes:
    content = {"epoch": epoch, "arch": "resnet18", "optimizer": {}, "version": 2, "state_dict": {}}
    return torch_zip(pickle=pickle.dumps(content, protocol=2))


def ultralytics_zip(epoch: int, *, stripped: bool = False) -> bytes:
    content = {"epoch": epoch, "best_fitness": 0.5, "stopper": {}, "ema": {}, "optimizer": {}}
    if stripped:  # as strip_optimizer merges it
        content = {"date": "2026-11-22", "version": "8.4", "epoch": -1, "best_fitness": None}
    return torch_zip(pickle=pickle.dumps(content, protocol=2))
