"""Files of torch.save: the zip format, and the older bare pickle, which nothing cheap can check."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from contextlib import closing
from typing import BinaryIO

from watchdog_train.checkpoints.files import (
    DamagedError,
    Entry,
    Listing,
    UnreadableError,
    open_regular,
)
from watchdog_train.checkpoints.formats import (
    Candidate,
    Limits,
    Verdict,
    by_number_then_time,
    number_in_name,
)
from watchdog_train.core.model.recovery import PARTS, SUFFIXES

_ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""The pickled magic number that torch.save wrote first before version 1.6."""
_DIRECTORY_CAP_BYTES = 16 * 1024 * 1024
"""Of the zip's directory: 200,000 tensors. zipfile would read as much as the file claims."""
_CHUNK_BYTES = 1024 * 1024
END_RECORD_BYTES = 22
END_MAGIC = b"PK\x05\x06"
"""With the record of 22 bytes that follows, the end of a zip without a comment."""

NAME = "torch"
LEGACY_NAME = "torch-legacy"


class BoundedReads:
    """The file object that zipfile gets: refuses to read a directory larger than the cap."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable

    def read(self, size: int = -1) -> bytes:
        """At most the cap, even of the rest of the file."""
        # zipfile asks for the rest of the file (-1) where it looks for the end record.
        wanted = _DIRECTORY_CAP_BYTES + 1
        data = self._file.read(wanted if size < 0 else min(size, wanted))
        if len(data) > _DIRECTORY_CAP_BYTES:
            raise UnreadableError("its table of contents is larger than what is read of it")
        return data


class OpenZip:
    """A torch.save zip whose structure has been found right. To be closed after use."""

    def __init__(self, path: str) -> None:
        self._file = open_regular(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        if self._file.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
            raise DamagedError("it does not begin as a zip of torch.save does")
        size_bytes = self._file.seek(0, os.SEEK_END)
        try:
            self.archive = zipfile.ZipFile(BoundedReads(self._file))
            self.members = self.archive.infolist()
        except (zipfile.BadZipFile, ValueError, OverflowError, OSError) as error:
            raise DamagedError(f"cut short or damaged: {error}") from error
        except NotImplementedError as error:
            raise UnreadableError(str(error)) from error
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
        """Close the file."""
        self.archive.close()
        self._file.close()

    @property
    def has_checksums(self) -> bool:
        """False after torch.serialization.set_crc32_options(False): every checksum is zero then."""
        return any(member.CRC for member in self.members if member.file_size)

    def read_member(self, ending: str, cap_bytes: int) -> bytes:
        """The stored bytes of the entry whose name ends so.

        Raises:
            DamagedError, UnreadableError: missing, damaged, compressed, or over the cap.
        """
        for member in self.members:
            if member.filename.endswith(ending):
                if member.file_size > cap_bytes or member.compress_type != zipfile.ZIP_STORED:
                    break
                try:
                    return self.archive.read(member)
                except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
                    raise DamagedError(f"entry {ending}: {error}") from error
        raise UnreadableError(f"it has no plain entry {ending}")

    def verify_checksums(self, limits: Limits) -> bool:
        """Read every entry and compare its checksum; False when the time was up before the end.

        Raises:
            DamagedError: a checksum is wrong.
        """
        for member in self.members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise UnreadableError("it has compressed entries, which torch.save never writes")
            try:
                with self.archive.open(member) as stream:
                    while stream.read(_CHUNK_BYTES):
                        if limits.time_left() <= 0:
                            return False
            except (
                zipfile.BadZipFile,
                OSError,
                EOFError,
                RuntimeError,
                NotImplementedError,
                ValueError,
            ) as error:
                raise DamagedError(f"entry {member.filename!r}: {error}") from error
        return True


def begins_like(path: str) -> str | None:
    """One of zip, legacy, empty, zeros, short (too short to tell); None for a foreign format."""
    with open_regular(path) as file:
        head = file.read(64)
    if not head:
        return "empty"
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    if head.startswith(_LEGACY_MAGIC):
        return "legacy"
    if not head.strip(b"\0"):
        return "zeros"
    if _ZIP_MAGIC.startswith(head) or _LEGACY_MAGIC.startswith(head):
        return "short"
    return None


def check_file(path: str, limits: Limits) -> Verdict:
    """The verdict on one file of torch.save, whatever it is a part of."""
    try:
        match begins_like(path):
            case "zip":
                return _check_zip(path, limits)
            case "legacy":
                return Verdict(
                    whole=None,
                    why="an old pickle of torch.save: nothing in it tells whether it is whole",
                    how_checked="quick",
                )
            case "empty":
                return Verdict(whole=False, why="the file is empty", how_checked="quick")
            case "zeros":
                return Verdict(
                    whole=False,
                    why="the file begins with zeros: never written",
                    how_checked="quick",
                )
            case "short":
                return Verdict(
                    whole=False, why="the file ends within its first bytes", how_checked="quick"
                )
            case _:
                return Verdict(
                    whole=None,
                    why="not a file of torch.save: a foreign format",
                    how_checked="quick",
                )
    except DamagedError as error:
        return Verdict(whole=False, why=str(error), how_checked=limits.level)
    except (UnreadableError, OSError) as error:
        return Verdict(whole=None, why=f"it cannot be checked: {error}", how_checked=limits.level)


def check_files(path: str, names: Iterable[str], limits: Limits) -> list[tuple[str, Verdict]]:
    """The verdict on each of these files of a directory, by name."""
    return [(name, check_file(os.path.join(path, name), limits)) for name in sorted(names)]


def _check_zip(path: str, limits: Limits) -> Verdict:
    with closing(OpenZip(path)) as archive:
        if limits.level == "quick":
            return Verdict(
                whole=True, why=f"{len(archive.members)} entries in place", how_checked="quick"
            )
        if not archive.has_checksums:
            return Verdict(
                whole=True,
                why="all entries are in place; it was saved without checksums",
                how_checked="quick",
            )
        if not archive.verify_checksums(limits):
            return Verdict(
                whole=True,
                why="all entries are in place; no time was left for their checksums",
                how_checked="quick",
            )
    return Verdict(whole=True, why="every checksum is right", how_checked="full")


class TorchFormat:
    """Single files that a script writes with torch.save."""

    name = NAME
    owns_directory = False
    resume_hint = (
        '--resume-arg "--resume {checkpoint}" with the option of your script, '
        "or read WTRAIN_RESUME_FROM in it"
    )

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """Files with a suffix of torch.save that are not a part of something larger."""
        return tuple(
            self._candidate(listing.path, entry)
            for entry in listing.entries
            if entry.kind == "file" and self._is_candidate(listing.path, entry)
        )

    def _candidate(self, directory: str, entry: Entry) -> Candidate:
        step, order = number_in_name(_stem(entry.name))
        return Candidate(
            path=os.path.join(directory, entry.name),
            format=self.name,
            step=step,
            order=order,
            files={entry.name: (entry.size, entry.mtime_ns)},
        )

    def _is_candidate(self, directory: str, entry: Entry) -> bool:
        name = entry.name.removesuffix(".tmp")
        if not name.endswith(SUFFIXES) or name.startswith((".", *PARTS)):
            return False
        if not name.endswith(".bin"):
            return True
        try:  # .bin is a suffix of data sets as well
            return begins_like(os.path.join(directory, entry.name)) in ("zip", "legacy")
        except (UnreadableError, OSError):
            return False

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By number in the name, then by time."""
        return by_number_then_time(candidates)

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Structure of the zip; at level full its checksums."""
        return check_file(candidate.path, limits)


def _stem(name: str) -> str:
    for suffix in (".tmp", ".tar", ".pt", ".pth", ".ckpt", ".bin"):
        name = name.removesuffix(suffix)
    return name
