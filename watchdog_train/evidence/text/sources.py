"""Reads what somebody brings: bounded, only regular files, the head and tail of long ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from watchdog_train.core.diagnosis.recorder import as_json
from watchdog_train.core.model import Value
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.recorders import read_dump
from watchdog_train.trusted_files import read_regular

HEAD_BYTES = 2 << 20
TAIL_BYTES = 4 << 20
FILES_CAP = 3000
TOTAL_BYTES = 256 << 20
_DEPTH_CAP = 6
_NOT_TEXT = {
    ".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npy", ".npz", ".png", ".jpg", ".jpeg",
    ".gif", ".pdf", ".zip", ".gz", ".tar", ".xz", ".whl", ".so", ".pyc", ".pkl", ".pickle",
    ".parquet", ".arrow", ".h5", ".hdf5", ".db", ".sqlite", ".core",
}  # fmt: skip


class Source(Value):
    """One text, with the name that its role is read from."""

    name: str
    """Relative to the folder that was given; `-` for what was pasted."""
    text: str
    cut: bool = False
    """The middle was left out."""


def read_sources(paths: Sequence[str]) -> tuple[list[Source], list[str]]:
    """All texts at these places, and what could not be read, in words.

    Raises:
        WtrainError: a path does not exist or cannot be read, or nothing in them is text.
    """
    sources: list[Source] = []
    notes: list[str] = []
    left = TOTAL_BYTES
    for path in paths:
        if path == "-":
            sources.append(_pasted())
            continue
        if not os.path.exists(path):
            raise WtrainError(
                "there is no such file or folder",
                context=path,
                hint="name a stall folder, a dump, a log, or - to paste",
                reference="evidence-missing",
            )
        for name, file in _files(Path(path), notes):
            source = _read(name, file, min(left, HEAD_BYTES + TAIL_BYTES), notes)
            if source is not None:
                left -= len(source.text)
                sources.append(source)
            if left <= 0:
                notes.append(
                    f"{file} and what follows was not read: {TOTAL_BYTES >> 20} MiB reached"
                )
                break
    if not any(source.text.strip() for source in sources):
        raise WtrainError(
            "there is no text in it",
            context=", ".join(paths),
            hint="wtrain diagnose takes stack dumps, Python tracebacks and logs as text or JSON"
            + "".join(f"\n{note}" for note in notes[:5]),
            reference="evidence-empty",
        )
    return sources, notes


def _pasted() -> Source:
    content = sys.stdin.buffer.read(HEAD_BYTES + TAIL_BYTES)
    return Source(name="-", text=content.decode("utf-8", "replace"))


def _files(path: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    if not path.is_dir():
        # The folder's name may be the only thing that tells the rank: 0/stderr.log of torchrun.
        yield "/".join(path.absolute().parts[-2:]), path
        return
    count = 0
    for folder, names, files in os.walk(path):
        depth = len(Path(folder).relative_to(path).parts)
        names[:] = sorted(n for n in names if not n.startswith(".")) if depth < _DEPTH_CAP else []
        for file in sorted(files):
            if file.startswith("."):
                continue
            count += 1
            if count > FILES_CAP:
                notes.append(f"more than {FILES_CAP} files in {path}: the rest was not read")
                return
            full = Path(folder) / file
            yield full.relative_to(path).as_posix(), full


def _read(name: str, path: Path, cap_bytes: int, notes: list[str]) -> Source | None:
    if path.suffix.lower() in _NOT_TEXT:
        return None
    head = read_regular(str(path), min(cap_bytes, HEAD_BYTES), follow=True)
    if head is None:
        notes.append(f"{path} could not be read")
        return None
    content, size = head
    if content[:1] == b"\x80" and size == len(content):
        recorded = read_dump(content)  # NCCL leaves its Flight Recorder as a pickle
        if recorded is not None:
            return Source(name=f"{name}.json", text=as_json(recorded).decode())
    if b"\0" in content[:4096] and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    cut = False
    if size > len(content) and cap_bytes > len(content):
        wanted = min(cap_bytes - len(content), TAIL_BYTES, size - len(content))
        tail = read_regular(str(path), wanted, from_end=True, follow=True)
        cut = size > len(content) + wanted
        if tail is not None:
            content += (b"\n" if cut else b"") + tail[0]
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return Source(name=name, text=content.decode(encoding, "replace"), cut=cut)
