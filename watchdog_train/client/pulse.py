"""Witnesses of what happened: fault handler, pulse thread, permission to attach, exit record.

It must never count as progress, and must leave no thread behind in a fork: from Python 3.12 a
fork with a live thread is a warning.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

from watchdog_train.client import control, exceptions, milestones, notes, slot
from watchdog_train.client import layout as L  # noqa: N812

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = 0xFFFFFFFFFFFFFFFF
_MOST_DUMP_BYTES = 8 << 20
_LONGEST_WAIT_FOR_PULSE_S = 0.2

_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python", "/watchdog_train/", "<frozen ")
_FRAMEWORKS = (
    *("submitit", "lightning", "pytorch_lightning", "wandb", "ray", "torch", "accelerate"),
    *("deepspeed", "transformers", "composer", "megatron", "signal", "faulthandler"),
)
"""Their handlers save or stop a training; none of them wakes a wait of the script."""

_allow = None
_dump_file = None
_pulse_wake = None
_pulse_gone = None
_pulse_task = None
_registered = False


def start():
    global _registered
    if not slot.has_slot:
        return
    register_fault_handler()
    start_pulse()
    if not _registered:
        _registered = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=stop_pulse, after_in_parent=_start_pulse_again)
        import atexit

        atexit.register(_at_exit)


@slot.harmless
def register_fault_handler():
    """SIGURG writes the stacks of all threads to a file of this process: the last resort.

    It holds no lock, so with running threads it may kill the process by SIGSEGV. The signal is
    ignored by default, so a process that has exec'd survives it.
    """
    global _dump_file
    import faulthandler

    number = getattr(_signal, "SIGURG", None)
    if number is None or not hasattr(faulthandler, "register"):
        return
    if _signal.getsignal(number) not in (_signal.SIG_DFL, _signal.SIG_IGN):
        notes.note("SIGURG is used by the program: no fault handler")
        return
    _dump_file = _open_dump()
    faulthandler.register(number, file=_dump_file, all_threads=True, chain=False)
    slot.words[L.W_FAULT_HANDLER] = int(number)


@slot.harmless
def allow_ptrace():
    """Let a process of this user attach (py-spy under Yama scope 1); torch has paid for ctypes."""
    global _allow
    if not sys.platform.startswith("linux") or not slot.supervised or not slot.allow_ptracer:
        return
    if _allow is None:
        import ctypes

        function = ctypes.CDLL(None).prctl
        any_process = ctypes.c_ulong(_PR_SET_PTRACER_ANY)
        zero = ctypes.c_ulong(0)
        option = ctypes.c_int(_PR_SET_PTRACER)
        _allow = lambda: function(option, any_process, zero, zero, zero)  # noqa: E731
    _allow()


def start_pulse():
    """A thread that counts seconds, to distinguish a held GIL from a waiting main thread."""
    global _pulse_wake, _pulse_gone
    try:
        if _pulse_wake is not None or not slot.has_slot:
            return
        wake, gone = _thread.allocate_lock(), _thread.allocate_lock()
        wake.acquire()
        gone.acquire()
        _pulse_wake, _pulse_gone = wake, gone
        # Not threading.Thread: the user's threading.enumerate() stays what it is without us.
        _thread.start_new_thread(_pulse, (wake, gone, slot.words, slot.generation))
    except Exception:
        _pulse_wake = None


@slot.harmless
def stop_pulse():
    """Stop the thread and wait a short time until the system has forgotten it."""
    global _pulse_wake
    wake, gone, task = _pulse_wake, _pulse_gone, _pulse_task
    if wake is None or gone is None:
        return
    _pulse_wake = None
    wake.release()
    if not gone.acquire(True, _LONGEST_WAIT_FOR_PULSE_S) or task is None:
        return
    until = time.monotonic() + _LONGEST_WAIT_FOR_PULSE_S
    while os.path.exists(task) and time.monotonic() < until:
        time.sleep(0)


def answer_dump(request):
    """Write the stacks of all threads, and answer.

    The interpreter lock keeps their frames as they are. A Python without it is left alone.
    """
    import faulthandler

    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    descriptor = _open_dump()
    try:
        faulthandler.dump_traceback(file=descriptor, all_threads=True)
    finally:
        os.close(descriptor)
    slot.words[L.W_DUMP_ANSWERED] = request


def _pulse(wake, gone, words, generation):
    global _pulse_task
    try:
        _pulse_task = "/proc/self/task/" + str(_thread.get_native_id())
    except Exception:
        _pulse_task = None
    try:
        while not wake.acquire(True, 1.0):
            if generation != slot.generation:
                break
            try:
                words[L.W_PULSE] += 1
                words[L.W_OWN_SIGNALS] = own_signals()
                request = control.dump_due()
                if request:
                    answer_dump(request)
                exceptions.stays()
                milestones.settle()
                notes.flush()
            except Exception:
                pass
    finally:
        gone.release()


def own_signals():
    """A bit for each of USER_SIGNALS that code of the script handles: it may be sent to wake it."""
    found = 0
    for bit, name in enumerate(L.USER_SIGNALS):
        number = getattr(_signal, name, None)
        if number is not None and _is_own(_signal.getsignal(number)):
            found |= 1 << bit
    return found


def _is_own(handler):
    """Whether a handler is neither of Python, of an installed package, nor of a framework."""
    handler = getattr(handler, "func", handler)  # functools.partial
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is None:
        handler = type(handler).__call__ if callable(handler) else None
        code = getattr(handler, "__code__", None)
    if code is None:
        return False
    file = code.co_filename.replace("\\", "/")
    package = str(getattr(handler, "__module__", "")).partition(".")[0]
    return package not in _FRAMEWORKS and not any(part in file for part in _INSTALLED)


def _open_dump():
    path = os.path.join(slot.slot_dir, str(os.getpid()) + L.DUMP_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | slot.SAFE_FLAGS
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_size > _MOST_DUMP_BYTES:
        os.ftruncate(descriptor, 0)
    return _move_up(descriptor)


def _move_up(descriptor):
    """To a high number: one that a user's closerange() frees must not become the user's file."""
    try:
        import fcntl

        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 900)  # type: ignore[attr-defined,unused-ignore]
    except Exception:
        return descriptor
    os.close(descriptor)
    return moved


def _start_pulse_again():
    if slot.has_slot:
        start_pulse()


def _after_fork():
    """The handler writes to the parent's file: remove it, until this process has a slot."""
    global _pulse_wake, _pulse_gone, _pulse_task, _dump_file
    _pulse_wake = _pulse_gone = _pulse_task = None
    try:
        if _dump_file is not None:
            import faulthandler

            faulthandler.unregister(_signal.SIGURG)  # type: ignore[attr-defined,unused-ignore]
            os.close(_dump_file)
    except Exception:
        pass
    _dump_file = None
    if _allow is not None:
        allow_ptrace()


def _at_exit():
    stop_pulse()
    notes.flush(now=True)


slot.on_fork_child.append(_after_fork)
slot.on_open.append(start)
