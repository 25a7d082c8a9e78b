"""What the programs of waits share: each thread says what it is about to wait for, then waits.

It says it as a line of JSON: who it is, the line of the wait, and the wait as the reader has to
give it, with pids where that has processes. An address of 0 stands for any, a `left_s` for at most.
A program imports nothing of watchdog_train.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import time

PROGRAMS = {}
SLEEPS = {"timed": True, "exact": sys.version_info >= (3, 11)}
"""What time.sleep() is: before, it was a select() without files."""


def program(facts: int = 1, needs: str | None = None, lines: bool = False):
    """Makes a function a program: `python FILE.py NAME`.

    Args:
        facts: how many threads of it, and of its processes, say something.
        needs: a module without which it cannot run.
        lines: the stacks are to be read, too: the line of each wait, and who has the GIL.
    """

    def keep(function):
        PROGRAMS[function.__name__] = (function, facts, needs, lines)
        return function

    return keep


def waits(tag: str, /, *, proven=False, owns_gil=False, pid=0, tid=0, **objects) -> None:
    """Says what the calling thread, another one, or the main thread of another process waits for.

    Args:
        tag: which wait.
        proven: nobody is left in this process to end it, and that can be seen.
        owns_gil: nobody else can run Python code.
        pid: of the other process.
        tid: of the other thread.
        objects: fields of the wait.
    """
    here = sys._getframe(1)
    line = here.f_lineno + 1
    code = linecache.getlines(here.f_code.co_filename)
    while line <= len(code) and not code[line - 1].endswith("# here\n"):
        line += 1
    fact = {
        "pid": pid or os.getpid(),
        "tid": tid or pid or threading.get_native_id(),
        "line": line,
        "proven": proven,
        "owns_gil": owns_gil,
        "wait": {"wait": tag, **objects},
    }
    os.write(1, json.dumps(fact).encode() + b"\n")


def cannot(why: str) -> None:
    """Ends: this machine does not have what it takes."""
    sys.exit(f"not here: {why}")


def child(function, *arguments) -> int:
    """Forks a process that runs a function and then ends."""
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid


def asleep(*close: int) -> int:
    """Forks a process that sleeps, without some of its descriptors."""
    return child(lambda: (list(map(os.close, close)), time.sleep(600)))


def thread(function, *arguments) -> threading.Thread:
    """Starts a daemon thread."""
    made = threading.Thread(target=function, args=arguments, daemon=True)
    made.start()
    return made


def until(test) -> None:
    """Polls; only to set a scene."""
    while not test():
        time.sleep(0.01)


def main() -> None:
    """Runs the program that the command line names."""
    PROGRAMS[sys.argv[1]][0]()
