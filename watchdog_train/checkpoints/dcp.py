"""Directories of torch.distributed.checkpoint (torchtitan's, too): shards and `.metadata`.

The metadata is a pickle; it is read as data (see pickle_data) and never run.
"""

from __future__ import annotations

import os
import re
import zipfile
from typing import Any

from watchdog_train.checkpoints import disk, formats
from watchdog_train.checkpoints.torch_zip import (
    BAD_ZIP,
    END_MAGIC,
    END_RECORD_BYTES,
    ZIP_MAGIC,
    Window,
    read_through,
)
from watchdog_train.core import pickle_data
from watchdog_train.core.model import Value

WITNESS = ".metadata"
"""Written last, by a rename from .metadata.tmp (torch 2.1 to 2.13)."""
_UNFINISHED = ".metadata.tmp"
_SHARD = re.compile(r"^__(\d{1,6})_\d{1,9}\.distcp$")
_PER_RANK_METADATA = re.compile(r"^__\d{1,6}\.metadata$")
_METADATA_CAP_BYTES = 256 * 1024 * 1024


class Stored(Value):
    """Where one piece of one tensor lies."""

    file: str
    offset: int
    length: int


def belongs(name: str) -> bool:
    """Whether a file of this name is a part of such a checkpoint."""
    return (
        name in (WITNESS, _UNFINISHED)
        or _SHARD.match(name) is not None
        or _PER_RANK_METADATA.match(name) is not None
    )


def check_directory(path: str, files: disk.Sizes, limits: formats.Limits) -> formats.Verdict:
    """The verdict on a directory, by itself or as a part of something larger.

    Raises:
        DamagedError, UnreadableError, OSError: see formats.judged.
    """
    if WITNESS not in files:
        if any(map(_PER_RANK_METADATA.match, files)):
            why = "each rank has written its own metadata: not checked"
            return formats.Verdict(whole=None, why=why)
        raise disk.DamagedError(f"{WITNESS} is missing, which is written last")
    stored = read_stored(os.path.join(path, WITNESS))
    shards = _check_sizes(stored, files)
    _check_ends(path, stored)
    deep = limits.level == "full" and _check_pieces(path, stored, limits)
    # A save over an older directory leaves the old metadata until its end.
    doubts = [formats.stale_words(WITNESS, files[WITNESS], files, _SHARD.match)]
    if _UNFINISHED in files:
        doubts.append(f"{_UNFINISHED} is there: a later save over this directory has not finished")
    why = f"metadata and {shards} files agree on {len(stored)} pieces"
    return formats.of_parts((), "full" if deep else "quick", why, doubts)


def read_stored(path: str) -> tuple[Stored, ...]:
    """Every piece that the metadata of a checkpoint names.

    Raises:
        DamagedError: cut short, or not such metadata.
        UnreadableError: missing, or too large.
    """
    try:
        value = pickle_data.read(disk.read_capped(path, _METADATA_CAP_BYTES))
    except pickle_data.DamagedPickleError as error:
        raise disk.DamagedError(f"{WITNESS}: {error}") from error
    except pickle_data.UnreadablePickleError as error:
        raise disk.UnreadableError(f"{WITNESS}: {error}") from error
    state = value.state if isinstance(value, pickle_data.Made) else None
    pieces = state.get("storage_data") if state is not None else None
    if not isinstance(pieces, dict):
        raise disk.UnreadableError(f"{WITNESS} tells nothing of where its pieces lie")
    return tuple(_stored(piece) for piece in pieces.values())


def _stored(piece: Any) -> Stored:
    state = piece.state if isinstance(piece, pickle_data.Made) else {}
    file, offset, length = (state.get(name) for name in ("relative_path", "offset", "length"))
    if not isinstance(file, str) or type(offset) is not int or type(length) is not int:
        raise disk.UnreadableError(f"{WITNESS} describes its pieces in an unknown way")
    if not disk.is_plain_name(file) or offset < 0 or length < 0:
        raise disk.DamagedError(f"{WITNESS} names a file outside of its directory")
    return Stored(file=file, offset=offset, length=length)


def _check_sizes(stored: tuple[Stored, ...], files: disk.Sizes) -> int:
    ends: dict[str, int] = {}
    for piece in stored:
        ends[piece.file] = max(ends.get(piece.file, 0), piece.offset + piece.length)
    for name, end_bytes in sorted(ends.items()):
        if name not in files:
            raise disk.DamagedError(f"{name} is missing, which {WITNESS} names")
        size_bytes = files[name][0]
        if size_bytes != end_bytes:
            raise disk.DamagedError(
                f"{name} has {size_bytes} bytes where {WITNESS} tells of {end_bytes}"
            )
    return len(ends)


def _check_ends(path: str, stored: tuple[Stored, ...]) -> None:
    """The last piece of each file is there: a file of the right size may end in zeros.

    After a power loss; the first piece tells whether pieces are files of torch.save at all.
    """
    files: dict[str, list[Stored]] = {}
    for piece in stored:
        files.setdefault(piece.file, []).append(piece)
    for name, pieces in sorted(files.items()):
        pieces.sort(key=lambda piece: piece.offset)
        first, last = pieces[0], pieces[-1]
        with disk.open_regular(os.path.join(path, name)) as file:
            file.seek(first.offset)
            if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
                continue
            file.seek(last.offset)
            begins = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
            file.seek(max(last.offset, last.offset + last.length - END_RECORD_BYTES))
            if not begins or file.read(len(END_MAGIC)) != END_MAGIC:
                raise disk.DamagedError(f"{name} does not end like its other pieces: never written")


def _check_pieces(path: str, stored: tuple[Stored, ...], limits: formats.Limits) -> bool:
    """Checksums of the pieces that are files of torch.save; False when the time was up."""
    of_zips: set[str] = set()
    for piece in sorted(stored, key=lambda item: (item.file, item.offset)):
        if limits.time_left() <= 0:
            return False
        with disk.open_regular(os.path.join(path, piece.file)) as file:
            file.seek(piece.offset)
            magic = file.read(len(ZIP_MAGIC))
            if magic != ZIP_MAGIC:
                if piece.file in of_zips and magic == bytes(len(ZIP_MAGIC)):
                    raise disk.DamagedError(f"{piece.file} holds zeros at byte {piece.offset}")
                continue
            of_zips.add(piece.file)
            window = Window(file, piece.offset, piece.offset + piece.length)
            try:
                with zipfile.ZipFile(window) as archive:
                    if not read_through(archive, limits):
                        return False
            except (*BAD_ZIP, disk.DamagedError) as error:
                where = f"{piece.file} at byte {piece.offset}"
                raise disk.DamagedError(f"{where}: {error}") from error
    return True


def _find(listing: disk.Listing) -> tuple[formats.Candidate, ...]:
    return formats.a_directory(listing, "dcp", listing.sizes(belongs))


FORMAT = formats.Format(
    name="dcp",
    resume_hint="torchtitan resumes by itself; else dcp.load(checkpoint_id={checkpoint}), "
    'for example with --resume-arg "--resume {checkpoint}"',
    owns_directory=True,
    find=_find,
    check=lambda candidate, limits: check_directory(candidate.path, candidate.files, limits),
)
