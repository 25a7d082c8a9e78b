"""What this process raised and did not catch, as Python prints it, for the supervisor.

The main thread's is read where the interpreter leaves it before it calls `sys.excepthook`: that
hook stays the program's own. It must never raise, print or keep a traceback alive.
"""

import os
import sys
import time

from watchdog_train.client import encode, roles, slot
from watchdog_train.client import layout as L  # noqa: N812

_MOST_CHARACTERS = 48 << 10
_MOST_FRAMES = 64

_armed: set = set()


def arm():
    """Listen where threading and multiprocessing are loaded; called again once torch is."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None and "threading" not in _armed:
            _armed.add("threading")
            _listen_to_threads(threading)
        util = sys.modules.get("multiprocessing.util")
        if util is not None and "processes" not in _armed:
            _armed.add("processes")
            # A forked child forgets all finalizers at its start, then calls this.
            util.register_after_fork(_Child, _Child.begins)
            _Child.begins()
    except Exception:
        pass


def at_the_end():
    """The exception that has ended the script, if one has."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        tell(error)


def tell(error, thread=""):
    """Write it down; a later one of this process takes its place."""
    try:
        if not slot.supervised or isinstance(error, KeyboardInterrupt):
            return
        import traceback

        lines = traceback.format_exception(
            type(error), error, error.__traceback__, limit=-_MOST_FRAMES
        )
        text = "".join(lines)
        if len(text) > _MOST_CHARACTERS:
            half = _MOST_CHARACTERS // 2
            text = text[:half] + "\n" + text[-half:]
        content = {
            "start": roles.start_ticks(),
            "attempt": slot.attempt,
            "rank": roles.number("RANK"),
            "thread": thread,
            "at": time.time(),
            "text": text,
        }
        data = encode.encode(content).encode("ascii")
        slot.replace_file(str(os.getpid()) + L.EXCEPTION_SUFFIX, data)
    except Exception:
        pass


def _listen_to_threads(threading):
    before = threading.excepthook

    def excepthook(args):
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            tell(args.exc_value, getattr(args.thread, "name", "") or "a thread")
        return before(args)

    threading.excepthook = excepthook


class _Child:
    """A child of multiprocessing: its _bootstrap calls no hook, but its finalizers come first."""

    @classmethod
    def begins(cls, *_):
        try:
            util = sys.modules["multiprocessing.util"]
            util.Finalize(None, cls.ends, exitpriority=1 << 30)
        except Exception:
            pass

    @staticmethod
    def ends():
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # torch.multiprocessing prints the exception into a file and exits with 1.
            error = error.__context__ if error.code else None
        if error is not None:
            tell(error)


slot.on_open.append(arm)
slot.on_fork_child.append(arm)
slot.on_close.append(at_the_end)
