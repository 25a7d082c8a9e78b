"""Files of torch.save: the zip format, and the older bare pickle, which nothing cheap can check."""

import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from heapq import nlargest
from typing import BinaryIO

from watchdog_train.checkpoints import disk, formats
from watchdog_train.checkpoints.disk import DamagedError, UnreadableError
from watchdog_train.checkpoints.names import step_in_name
from watchdog_train.core.model.recovery import PARTS, SUFFIXES, SaveRecord

ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""The pickled magic number that torch.save wrote first before version 1.6."""
_DIRECTORY_CAP_BYTES = 16 * 1024 * 1024
"""Of the zip's directory: 200,000 tensors. zipfile would read as much as the file claims."""
_CHUNK_BYTES = 1024 * 1024
END_RECORD_BYTES = 22
END_MAGIC = b"PK\x05\x06"
"""With the record of 22 bytes that follows, the end of a zip without a comment."""

BAD_ZIP = (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, OverflowError, OSError)
"""What zipfile raises for a damaged file."""

NAME = "torch"


class Window:
    """The file object that zipfile gets: a file or a part of one, with a limit per read."""

    def __init__(self, file: BinaryIO, begin: int = 0, end: int | None = None) -> None:
        self._file, self._begin = file, begin
        self._end = file.seek(0, os.SEEK_END) if end is None else end
        self.seekable = file.seekable

    def tell(self) -> int:
        """Bytes from the beginning of the part, not of the file."""
        return self._file.tell() - self._begin

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        now = self._file.tell()
        base = {os.SEEK_SET: self._begin, os.SEEK_CUR: now, os.SEEK_END: self._end}[whence]
        return self._file.seek(max(self._begin, base + offset)) - self._begin

    def read(self, size: int = -1) -> bytes:
        # zipfile asks for the rest of the file (-1) where it looks for the end record.
        wanted = min(max(0, self._end - self._file.tell()), _DIRECTORY_CAP_BYTES + 1)
        data = self._file.read(wanted if size < 0 else min(size, wanted))
        if len(data) > _DIRECTORY_CAP_BYTES:
            raise UnreadableError("its table of contents is larger than what is read of it")
        return data


def read_through(archive: zipfile.ZipFile, limits: formats.Limits) -> bool:
    """Read every entry and compare its checksum; False if the time ran out."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise UnreadableError("it has compressed entries, which torch.save never writes")
        try:
            with archive.open(member) as stream:
                while stream.read(_CHUNK_BYTES):
                    if limits.time_left() <= 0:
                        return False
        except BAD_ZIP as error:
            raise DamagedError(f"entry {member.filename!r}: {error}") from error
    return True


class OpenZip:
    """A torch.save zip with a correct structure. Close it after use."""

    def __init__(self, path: str) -> None:
        self._file = disk.open_regular(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        if self._file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            raise DamagedError("it does not begin as a zip of torch.save does")
        size_bytes = self._file.seek(0, os.SEEK_END)
        try:
            self.archive = zipfile.ZipFile(Window(self._file))
            self.members = self.archive.infolist()
        except NotImplementedError as error:
            raise UnreadableError(str(error)) from error
        except BAD_ZIP as error:
            raise DamagedError(f"cut short or damaged: {error}") from error
        # zipfile forgives bytes after the end record and before the first entry; torch writes none.
        self._file.seek(max(0, size_bytes - END_RECORD_BYTES))
        if self._file.read(len(END_MAGIC)) != END_MAGIC:
            raise DamagedError("it does not end where a zip ends")
        names = [member.filename for member in self.members]
        if not any(name.endswith("/data.pkl") for name in names):
            raise DamagedError("the zip has no data.pkl entry")
        if not any(name.endswith(("/version", "/.data/version")) for name in names):
            raise DamagedError("the zip has no version entry")
        ends = [member.header_offset + member.compress_size for member in self.members]
        if min(member.header_offset for member in self.members) != 0:
            raise DamagedError("the zip does not begin with its first entry")
        if max(ends) > self.archive.start_dir:
            raise DamagedError("an entry of the zip reaches beyond the data")

    def close(self) -> None:
        self.archive.close()
        self._file.close()

    @property
    def has_checksums(self) -> bool:
        """False after torch.serialization.set_crc32_options(False): every checksum is zero then."""
        return any(member.CRC for member in self.members if member.file_size)

    def read_member(self, ending: str, cap_bytes: int) -> bytes:
        """The stored bytes of the entry whose name ends so, if it is not compressed."""
        for member in self.members:
            if member.filename.endswith(ending):
                if member.file_size > cap_bytes or member.compress_type != zipfile.ZIP_STORED:
                    break
                try:
                    return self.archive.read(member)
                except BAD_ZIP as error:
                    raise DamagedError(f"entry {ending}: {error}") from error
        raise UnreadableError(f"it has no plain entry {ending}")


def check_file(path: str, limits: formats.Limits) -> formats.Verdict:
    with disk.open_regular(path) as file:
        head = file.read(64)
    if head.startswith(_LEGACY_MAGIC):
        why = "an old pickle of torch.save: nothing in it tells whether it is whole"
        return formats.Verdict(whole=None, why=why)
    if not head.strip(b"\0"):
        begins = "the file begins with zeros: never written"
        raise DamagedError(begins if head else "the file is empty")
    if not head.startswith(ZIP_MAGIC):
        if ZIP_MAGIC.startswith(head) or _LEGACY_MAGIC.startswith(head):
            raise DamagedError("the file ends within its first bytes")
        return formats.Verdict(whole=None, why="not a file of torch.save: a foreign format")
    with closing(OpenZip(path)) as archive:
        if limits.level == "quick":
            why = f"{len(archive.members)} entries in place"
        elif not archive.has_checksums:
            why = "all entries are in place; it was saved without checksums"
        elif not read_through(archive.archive, limits):
            why = "all entries are in place; no time was left for their checksums"
        else:
            return formats.Verdict(whole=True, why="every checksum is right", how_checked="full")
    return formats.Verdict(whole=True, why=why)


def parts(path: str, names: Iterable[str], limits: formats.Limits) -> Iterator[formats.Part]:
    for name in sorted(names):
        yield name, partial(check_file, os.path.join(path, name), limits)


def _is_torch_file(path: str) -> bool:
    try:
        with disk.open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except (UnreadableError, OSError):
        return False
    name_bytes = int.from_bytes(head[26:28], "little")
    is_zip = head.startswith(ZIP_MAGIC) and head[30 : 30 + name_bytes].endswith(b"/data.pkl")
    return is_zip or head.startswith(_LEGACY_MAGIC)


def _find(listing: disk.Listing) -> tuple[formats.Candidate, ...]:
    files = [one for one in listing.entries if one.is_file]
    files = [one for one in files if not one.name.startswith((".", *PARTS))]
    unsure = [one for one in files if _MAY_BE.search(one.name)]
    named = [one for one in files if one.name.removesuffix(".tmp").endswith(SUFFIXES)]
    newest = nlargest(_HEADS_CAP, unsure, key=lambda entry: entry.mtime_ns)
    found = [one for one in named if not _MAY_BE.search(one.name)]
    found += [one for one in newest if _is_torch_file(os.path.join(listing.path, one.name))]
    return tuple(as_candidate(listing, entry) for entry in found)


def may_be_one(save: SaveRecord) -> bool:
    """A shard of DCP is written by torch.save, too."""
    return save.format == NAME and not save.is_part and not save.path.endswith(".distcp")


def as_candidate(listing: disk.Listing, entry: disk.Entry) -> formats.Candidate:
    return formats.a_file(listing, entry, NAME, step_in_name(SUFFIX.sub("", entry.name)))


SUFFIX = re.compile(r"(\.(pt|pth|ckpt|bin|pkl|model|safetensors))?(\.tar)?(\.tmp)?\Z")
_MAY_BE = re.compile(r"(^[^.]+|(?<!\.pth)\.tar|\.(bin|pkl|model))(\.tmp)?$")
"""Names of other things as well: the first bytes decide."""
_HEADS_CAP = 500
_HEAD_BYTES = 4096
FORMAT = formats.Format(
    name=NAME,
    resume_hint='--resume-arg "--resume {checkpoint}" with the option of your script, '
    "or read WTRAIN_RESUME_FROM in it",
    find=_find,
    check=lambda candidate, limits: check_file(candidate.path, limits),
)
