"""Ranks by torch.distributed: a process that joins a process group is one, with its number there.

Without RANK in the environment (torch.multiprocessing.spawn, most of all) there is no other source.
It must not change what the call returns or raises.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import (
    libraries,
    milestones,
    notes,
    phases,
    roles,
    settings,
    slot,
    training_settings,
)

_NAME = "init_process_group"
# Private to torch: only where it was tried.
_OLDEST, _BEYOND = (2, 13), (2, 14)
_LONGEST_PATH = 100
_ONLY_ERRORS = 2

_served_by = None


def arm(module):
    ours = {"new_group": training_settings.longer_if_given, _NAME: training_settings.longer_timeout}
    for name, change in ours.items():
        original = getattr(module, name)
        wrapper = settings.changing("raise-ddp-timeout", original, change)
        if name == _NAME:
            wrapper = _joining(module, wrapper)
        for place in (module, sys.modules.get("torch.distributed")):
            if getattr(place, name, None) is original:
                setattr(place, name, wrapper)


def _joining(module, original):
    inner = original
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]

    def init_process_group(*args, **kwargs):
        # The rank is set before the call, too: in its rendezvous a rank may wait without an end.
        try:
            given = dict(zip(names, args), **kwargs)  # noqa: B905 - of Python 3.10
            rank, local_rank, world = roles.group_rank(given)
            if rank is not None:
                slot.become_rank(rank, local_rank, world)
        except Exception:
            pass
        result = original(*args, **kwargs)
        try:
            local_rank = roles.number("LOCAL_RANK")
            slot.become_rank(module.get_rank(), local_rank, module.get_world_size())
            _start_server(module.get_world_size())
        except Exception:
            pass
        return result

    return milestones.around(_NAME, phases.like(init_process_group, original))


def _start_server(world):
    """Torch's worker server: gives the Flight Recorder with the interpreter lock held, too.

    Only in a job of several ranks, on a socket in the private slot directory. It must print
    nothing, and must not be stopped at exit: its destructor would print, and wait for its threads.
    """
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


_WRAPPERS = {"DistributedDataParallel": "wrap in DDP", "FullyShardedDataParallel": "wrap in FSDP"}


def parallel(module):
    """Hook into a module that has just been imported: of DDP, of FSDP, or of fully_shard."""
    for name, place in _WRAPPERS.items():
        if name in vars(module):
            milestones.around_method(vars(module)[name], "__init__", place)
    if "fully_shard" in vars(module):
        module.fully_shard = milestones.around("wrap in FSDP", module.fully_shard)
