"""What this process raised and did not catch, as Python prints it, for the supervisor.

The main thread's is read where the interpreter leaves it before it calls `sys.excepthook`: that
hook stays the program's own. It must never raise, print or keep a traceback alive.
"""

import os
import sys
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, roles, slot

_MOST_CHARACTERS = 48 << 10
_MOST_FRAMES = 64

# The outermost frame while a script runs.
_SCRIPTS = ("<module>", "_run_module_as_main")
# This many pulses (one a second) in the same handler are more than a pause.
_PULSES = 3

_armed: set = set()
_handled = (0, 0)


@slot.harmless
def arm():
    """Listen where threading and multiprocessing are loaded; called again once torch is."""
    threading = sys.modules.get("threading")
    if threading is not None and "threading" not in _armed:
        _armed.add("threading")
        _listen_to_threads(threading)
    util = sys.modules.get("multiprocessing.util")
    if util is not None and "processes" not in _armed:
        _armed.add("processes")
        # A forked child forgets all finalizers at its start, then calls this.
        util.register_after_fork(_child_begins, _child_begins)
        _child_begins()


def at_the_end():
    """The exception that has ended the script, or None."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        tell(error)


@slot.harmless
def stays():
    """Once a second, by the pulse thread: the main thread has raised, and waits in its cleanup.

    That is an exit handler, or the block that handles the exception; the reader finds which.
    """
    global _handled
    handled = getattr(sys, "_current_exceptions", dict)  # from Python 3.11 on
    error, threading = getattr(sys, "last_value", None), sys.modules.get("threading")
    if threading is None or "traceback" not in sys.modules:
        return  # no import by this thread
    main = threading.main_thread().ident
    leaves = error is not None
    if not leaves:
        error = handled().get(main)
        error = error[1] if isinstance(error, tuple) else error
    number, times = _handled
    _handled = id(error), times + 1 if number == id(error) else 1
    if not isinstance(error, Exception) or _handled[1] != _PULSES:
        return
    frame, raised_in = sys._current_frames()[main], set()
    trace = None if leaves else error.__traceback__
    while trace is not None:
        raised_in.add(trace.tb_frame)
        trace = trace.tb_next
    while frame.f_back is not None and frame not in raised_in:
        frame = frame.f_back
    if leaves and frame.f_code.co_name not in _SCRIPTS:
        tell(error, stays={"line": 0})
    elif frame in raised_in:
        tell(error, stays={"file": frame.f_code.co_filename, "line": frame.f_lineno})


@slot.harmless
def tell(error, thread="", stays=None):
    """Record it; a later one of this process replaces it."""
    if not slot.supervised or isinstance(error, KeyboardInterrupt):
        return
    import traceback

    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-_MOST_FRAMES)
    text = "".join(lines)
    only = traceback.format_exception_only(type(error), error)[0]
    quote = only.find("Traceback (most recent call last)")
    quoted_at = text.rfind(only) + quote if quote > 0 and only in text else 0
    if len(text) > _MOST_CHARACTERS:
        quoted_at = 0
        half = _MOST_CHARACTERS // 2
        text = text[:half] + "\n" + text[-half:]
    content = {
        "start": roles.start_ticks(),
        "attempt": slot.attempt,
        "rank": roles.number("RANK"),
        "thread": thread,
        "at": time.time(),
        "text": text,
        "quoted_at": quoted_at,
        "saving": _saving(error),
        "stays": stays,
    }
    data = notes.encode(content).encode("ascii")
    slot.replace_file(str(os.getpid()) + L.EXCEPTION_SUFFIX, data)


def _saving(error):
    """The path of the save that failed by this exception, or by one that led to it."""
    saves = sys.modules.get("watchdog_train.client.saves")
    number, path = saves.failed if saves is not None else (0, "")
    for _ in range(16):
        if error is None or id(error) == number:
            break
        error = error.__cause__ or error.__context__
    return path if error is not None and id(error) == number else ""


def _listen_to_threads(threading):
    before = threading.excepthook

    def excepthook(args):
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            tell(args.exc_value, getattr(args.thread, "name", "") or "a thread")
        return before(args)

    threading.excepthook = excepthook


@slot.harmless
def _child_begins(*_):
    """A child of multiprocessing: its _bootstrap calls no hook, but its finalizers come first."""
    util = sys.modules["multiprocessing.util"]
    util.Finalize(None, _child_ends, exitpriority=1 << 30)


def _child_ends():
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch.multiprocessing prints the exception into a file and exits with 1.
        error = error.__context__ if error.code else None
    if error is not None:
        tell(error)


slot.on_open.append(arm)
slot.on_fork_child.append(arm)
slot.on_close.append(at_the_end)
