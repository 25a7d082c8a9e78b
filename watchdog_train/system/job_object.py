"""A Windows Job object: everybody whom a keeper has started, whoever their parents are by now.

The keeper makes it and puts itself in (keeper/job_object.py); a supervisor opens it by its name.
It has no limits: closing the last handle must end nobody, or a supervisor's death would be the
training's. All types have fixed sizes, so that layouts can be checked on any system.

Nobody has run this on Windows. Sources: Microsoft's pages of each function, and winnt.h.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_void_p, c_wchar_p
from typing import Any, NoReturn

BOOL, DWORD, HANDLE = c_int32, c_uint32, c_void_p
JOB_OBJECT_QUERY = 0x0004
JOB_OBJECT_TERMINATE = 0x0008
BASIC_PROCESS_ID_LIST = 3
"""Of JOBOBJECTINFOCLASS."""
ERROR_MORE_DATA = 234
FIRST_ROOM = 256
MOST_PROCESSES = 65_536
"""More than that are not listed; a job of this size is a mistake of somebody's."""
ENDED_WITH = 1
"""The exit code that Windows shows for a process that was ended with its job."""


class ProcessIdList(ctypes.Structure):
    """The head of JOBOBJECT_BASIC_PROCESS_ID_LIST; more ids, of the size of a pointer, follow."""

    _fields_ = (
        ("NumberOfAssignedProcesses", DWORD),
        ("NumberOfProcessIdsInList", DWORD),
        ("ProcessIdList", c_size_t * 1),
    )


HEAD_BYTES = ProcessIdList.ProcessIdList.offset
ID_BYTES = ctypes.sizeof(c_size_t)
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "OpenJobObjectW": (HANDLE, (DWORD, BOOL, c_wchar_p)),
    "QueryInformationJobObject": (BOOL, (HANDLE, c_int32, c_void_p, DWORD, POINTER(DWORD))),
    "TerminateJobObject": (BOOL, (HANDLE, c_uint32)),
    "CloseHandle": (BOOL, (HANDLE,)),
}
"""Result and arguments of each function: without them a handle is cut to 32 bits."""


def declare(library: Any) -> Any:
    """The library, with the signatures of what is used of it."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def kernel32() -> tuple[Any, Callable[[], int]]:
    """The library, and how to ask for the error of the last call of this thread.

    Raises:
        OSError: this is not Windows.
    """
    if sys.platform == "win32":
        return declare(ctypes.WinDLL("kernel32", use_last_error=True)), ctypes.get_last_error
    raise OSError("Job objects are a thing of Windows")


class JobObject:
    """One open job. Its methods raise OSError with what failed and where."""

    def __init__(self, name: str, library: Any = None, last_error: Any = None) -> None:
        """Open it.

        Args:
            name: as the keeper has recorded it.
            library: kernel32; None: the real one.
            last_error: gives the number of the last error; goes with `library`.

        Raises:
            OSError: there is none of this name, or it is not ours to open.
        """
        if library is None:
            library, last_error = kernel32()
        self.name = name
        self._library, self._last_error = library, last_error
        self._handle: int | None = None
        rights = JOB_OBJECT_QUERY | JOB_OBJECT_TERMINATE
        self._handle = library.OpenJobObjectW(rights, 0, name)
        if not self._handle:
            self._fail("OpenJobObject")

    def pids(self) -> frozenset[int]:
        """Whoever is in it now, its keeper included.

        Raises:
            OSError: it cannot be asked, or holds too many.
        """
        room = FIRST_ROOM
        while room <= MOST_PROCESSES:
            size = HEAD_BYTES + room * ID_BYTES
            buffer = ctypes.create_string_buffer(size)
            whole = self._library.QueryInformationJobObject(
                self._open(), BASIC_PROCESS_ID_LIST, buffer, size, None
            )
            if not whole and self._last_error() != ERROR_MORE_DATA:
                self._fail("QueryInformationJobObject")
            assigned, pids = parse_ids(bytes(buffer))
            if whole and len(pids) >= assigned:
                return frozenset(pids)
            room = max(room * 2, assigned + FIRST_ROOM)
        raise OSError(f"more than {MOST_PROCESSES} processes are in the job {self.name}")

    def end_all(self) -> None:
        """End everybody in it at once, without a word to anybody.

        Raises:
            OSError: refused.
        """
        if not self._library.TerminateJobObject(self._open(), ENDED_WITH):
            self._fail("TerminateJobObject")

    def close(self, left: Iterable[int] = ()) -> None:
        """Let go of it; nobody ends by that, and nobody can leave it."""
        del left
        handle, self._handle = self._handle, None
        if handle:
            self._library.CloseHandle(handle)

    def _open(self) -> int:
        if self._handle is None:
            raise OSError(f"the job {self.name} has been closed")
        return self._handle

    def _fail(self, what: str) -> NoReturn:
        number = int(self._last_error())
        raise OSError(number, f"{what} failed with Windows error {number}", self.name)


def parse_ids(data: bytes) -> tuple[int, tuple[int, ...]]:
    """How many are in the job, and the ids that there was room for.

    A list that claims more than the buffer holds is read as far as the buffer goes.
    """
    if len(data) < HEAD_BYTES:
        return 0, ()
    assigned = int.from_bytes(data[:4], sys.byteorder)
    listed = int.from_bytes(data[4:8], sys.byteorder)
    room = (len(data) - HEAD_BYTES) // ID_BYTES
    starts = (HEAD_BYTES + number * ID_BYTES for number in range(min(listed, room)))
    ids = (int.from_bytes(data[start : start + ID_BYTES], sys.byteorder) for start in starts)
    return assigned, tuple(pid for pid in ids if pid)
