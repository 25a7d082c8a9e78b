"""Windows: the keeper puts itself into a Job object, so that all it starts is born inside.

Not the training, suspended, from outside: a failure on that way would leave it suspended for
ever, and here it only leaves it without a job. Nor kill-on-close: the training outlives us.

Nobody has run this on Windows.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_int32, c_void_p, c_wchar_p

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ERROR_ALREADY_EXISTS = 183
SIGNATURES = {
    "CreateJobObjectW": (c_void_p, (c_void_p, c_wchar_p)),
    "GetCurrentProcess": (c_void_p, ()),
    "AssignProcessToJobObject": (c_int32, (c_void_p, c_void_p)),
    "CloseHandle": (c_int32, (c_void_p,)),
}


def enter(name: str | None, calls: tuple[Any, Callable[[], int]] | None = None) -> str | None:
    """Be in a new job of this name for as long as we live; why not, if that fails.

    Args:
        name: None: none is wanted.
        calls: kernel32, and how to ask for its last error; None: the real one.
    """
    if name is None:
        return None
    if calls is None:
        if sys.platform != "win32":
            return "Job objects are a thing of Windows"
        calls = ctypes.WinDLL("kernel32", use_last_error=True), ctypes.get_last_error
    library, last_error = calls
    for function, (result, arguments) in SIGNATURES.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    if sys.platform == "win32":
        ctypes.set_last_error(0)  # one of before would pass for ERROR_ALREADY_EXISTS
    job = library.CreateJobObjectW(None, name)
    number = last_error()
    if not job:
        return f"CreateJobObject of {name} failed with Windows error {number}"
    if number == ERROR_ALREADY_EXISTS:
        # Somebody else's, who could end what is in it.
        library.CloseHandle(job)
        return f"a job {name} exists already"
    # On success the handle stays open: the name lives only as long as a handle.
    if not library.AssignProcessToJobObject(job, library.GetCurrentProcess()):
        problem = f"AssignProcessToJobObject of {name} failed with Windows error {last_error()}"
        library.CloseHandle(job)
        return problem
    return None
