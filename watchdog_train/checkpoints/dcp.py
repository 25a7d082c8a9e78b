"""Directories of torch.distributed.checkpoint (torchtitan's, too): shards and `.metadata`.

The metadata is a pickle; it is read as data (see pickle_data) and never run.
"""

import os
import re
import zipfile
from typing import Any, NamedTuple

from watchdog_train.checkpoints import disk, formats, torch_zip
from watchdog_train.checkpoints.disk import DamagedError, UnreadableError
from watchdog_train.checkpoints.torch_zip import ZIP_MAGIC
from watchdog_train.core import pickle_data

WITNESS = ".metadata"
"""Written last, by a rename from .metadata.tmp (torch 2.1 to 2.13)."""
_UNFINISHED = ".metadata.tmp"
_SHARD = re.compile(r"^__(\d{1,6})_\d{1,9}\.distcp$")
_PER_RANK_METADATA = re.compile(r"^__\d{1,6}\.metadata$")
_FILES = re.compile(rf"\.metadata(\.tmp)?$|{_SHARD.pattern}|{_PER_RANK_METADATA.pattern}")
_METADATA_CAP_BYTES = 256 * 1024 * 1024


class Stored(NamedTuple):
    file: str
    offset: int
    length: int


def check_directory(path: str, files: disk.Sizes, limits: formats.Limits) -> formats.Verdict:
    """The verdict on a directory, alone or as a part of something larger."""
    if WITNESS not in files:
        if any(map(_PER_RANK_METADATA.match, files)):
            why = "each rank has written its own metadata: not checked"
            return formats.Verdict(whole=None, why=why)
        raise DamagedError(f"{WITNESS} is missing, which is written last")
    pieces: dict[str, list[Stored]] = {}
    for piece in sorted(read_stored(os.path.join(path, WITNESS))):
        pieces.setdefault(piece.file, []).append(piece)
    for name, stored in pieces.items():
        _check_size(name, stored, files)
    for name, stored in pieces.items():
        _check_end(os.path.join(path, name), stored)
    deep = limits.level == "full" and all(
        _check_pieces(os.path.join(path, name), stored, limits) for name, stored in pieces.items()
    )
    # A save over an older directory leaves the old metadata until its end.
    doubts = [formats.stale_words(WITNESS, files[WITNESS], files, _SHARD.match)]
    if _UNFINISHED in files:
        doubts.append(f"{_UNFINISHED} is there: a later save over this directory has not finished")
    count = sum(map(len, pieces.values()))
    why = f"metadata and {len(pieces)} files agree on {count} pieces"
    return formats.of_parts((), "full" if deep else "quick", why, doubts)


def read_stored(path: str) -> tuple[Stored, ...]:
    """Every piece that the metadata of a checkpoint names."""
    try:
        value = pickle_data.read(disk.read_capped(path, _METADATA_CAP_BYTES))
    except pickle_data.DamagedPickleError as error:
        raise DamagedError(f"{WITNESS}: {error}") from error
    except pickle_data.UnreadablePickleError as error:
        raise UnreadableError(f"{WITNESS}: {error}") from error
    state = value.state if isinstance(value, pickle_data.Made) else None
    pieces = state.get("storage_data") if state is not None else None
    if not isinstance(pieces, dict):
        raise UnreadableError(f"{WITNESS} tells nothing of where its pieces lie")
    return tuple(_stored(piece) for piece in pieces.values())


def _stored(piece: Any) -> Stored:
    state = piece.state if isinstance(piece, pickle_data.Made) else {}
    file, offset, length = (state.get(name) for name in ("relative_path", "offset", "length"))
    if not isinstance(file, str) or type(offset) is not int or type(length) is not int:
        raise UnreadableError(f"{WITNESS} describes its pieces in an unknown way")
    if not disk.is_plain_name(file) or offset < 0 or length < 0:
        raise DamagedError(f"{WITNESS} names a file outside of its directory")
    return Stored(file, offset, length)


def _check_size(name: str, stored: list[Stored], files: disk.Sizes) -> None:
    if name not in files:
        raise DamagedError(f"{name} is missing, which {WITNESS} names")
    size_bytes, end_bytes = files[name][0], max(one.offset + one.length for one in stored)
    if size_bytes != end_bytes:
        raise DamagedError(f"{name} has {size_bytes} bytes where {WITNESS} tells of {end_bytes}")


def _check_end(path: str, stored: list[Stored]) -> None:
    """The last piece of a file is there: a file of the right size may end in zeros.

    After a power loss; the first piece shows whether pieces are files of torch.save.
    """
    last, end_bytes = stored[-1], torch_zip.END_RECORD_BYTES
    with disk.open_regular(path) as file:
        file.seek(stored[0].offset)
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            return
        file.seek(last.offset)
        begins = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        file.seek(max(last.offset, last.offset + last.length - end_bytes))
        if not begins or not file.read(end_bytes).startswith(torch_zip.END_MAGIC):
            name = os.path.basename(path)
            raise DamagedError(f"{name} does not end like its other pieces: never written")


def _check_pieces(path: str, stored: list[Stored], limits: formats.Limits) -> bool:
    """Checksums of the pieces that are files of torch.save; False if the time ran out."""
    seen_zip = False
    for piece in stored:
        if limits.time_left() <= 0:
            return False
        with disk.open_regular(path) as file:
            file.seek(piece.offset)
            magic = file.read(len(ZIP_MAGIC))
            if magic != ZIP_MAGIC:
                if seen_zip and magic == bytes(len(ZIP_MAGIC)):
                    raise DamagedError(f"{piece.file} holds zeros at byte {piece.offset}")
                continue
            seen_zip = True
            window = torch_zip.Window(file, piece.offset, piece.offset + piece.length)
            try:
                with zipfile.ZipFile(window) as archive:
                    if not torch_zip.read_through(archive, limits):
                        return False
            except (*torch_zip.BAD_ZIP, DamagedError) as error:
                where = f"{piece.file} at byte {piece.offset}"
                raise DamagedError(f"{where}: {error}") from error
    return True


FORMAT = formats.Format(
    name="dcp",
    resume_hint="torchtitan resumes by itself; else dcp.load(checkpoint_id={checkpoint}), "
    'for example with --resume-arg "--resume {checkpoint}"',
    owns_directory=True,
    find=lambda listing: formats.a_directory(listing, "dcp", listing.sizes(_FILES.match)),
    check=lambda candidate, limits: check_directory(candidate.path, candidate.files, limits),
)
