"""torch's worker server in a rank: gives the Flight Recorder with the interpreter lock held, too.

Only in a job of several ranks, on a socket in the private slot directory. It must print nothing,
and must not be ended at exit: its destructor would print, and wait for its threads.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import libraries, notes, slot

# Private to torch: only where it was tried.
_OLDEST, _BEYOND = (2, 13), (2, 14)
_LONGEST_PATH = 100
_ONLY_ERRORS = 2

_served_by = None


def start(world):
    """Start it in this process, once; what speaks against it is noted."""
    global _served_by
    try:
        pid = os.getpid()
        if world < 2 or not slot.has_slot or _served_by == pid or not _is_wanted():
            return
        torch = sys.modules["torch"]
        if not is_tried_with(torch.__version__):
            notes.note("no worker server: not tried with torch " + str(torch.__version__))
            return
        path = os.path.join(slot.slot_dir, str(pid) + L.SOCKET_SUFFIX)
        if len(os.fsencode(path)) > _LONGEST_PATH:
            notes.note("no worker server: the path of the slot directory is too long for a socket")
            return
        _served_by = pid
        _listen(torch, path)
    except Exception as error:
        notes.note("no worker server: " + type(error).__name__ + ": " + str(error)[:200])


def is_tried_with(torch_version):
    """Whether the server of this torch is known to print nothing and to do no harm."""
    version = libraries.version_numbers(torch_version)
    return version is not None and _OLDEST <= version < _BEYOND


def _is_wanted():
    return slot.worker_server and sys.platform.startswith("linux")


def _listen(torch, path):
    import ctypes

    from torch._C._distributed_c10d import _WorkerServer

    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    # It says on stderr that it listens: torch's own level of logging is raised for that moment.
    level = ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    if os.path.exists(path):  # of an earlier process with this number
        os.unlink(path)
    before = level.value
    level.value = max(before, _ONLY_ERRORS)
    try:
        server = _WorkerServer(path)
    finally:
        level.value = before
    slot.also_unlink(path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
