"""What the training's own interpreter can do: its fault handler."""

from __future__ import annotations

import subprocess
import sys

from watchdog_train.doctor import Check

ANSWER_S = 15.0
_HANDLER = """\
import faulthandler, os, signal, sys
faulthandler.register(signal.SIGURG, file=sys.stdout, all_threads=True)
os.kill(os.getpid(), signal.SIGURG)
"""


def fault_handler(python: str) -> Check:
    """Really have it write its stack at a signal, which is the way without ptrace."""
    name = "fault handler"
    if sys.platform == "win32":
        says = "no such signal on Windows: stacks come by a page that the training reads"
        return Check(name=name, status="unknown", says=says)
    try:
        done = subprocess.run(
            [python, "-S", "-c", _HANDLER],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_S,
        )
    except OSError as error:
        says = f"{python} cannot be started: {error.strerror}"
        return Check(name=name, status="failure", says=says, mend="name it with --python")
    except subprocess.TimeoutExpired:
        says = f"{python} did not answer within {ANSWER_S:.0f} s"
        return Check(name=name, status="warning", says=says, mend="name another with --python")
    if b"File" in done.stdout:
        return Check(name=name, status="ok", says="a process writes its own stack at SIGURG")
    mend = "py-spy has to do it alone; a container may filter the signal"
    return Check(name=name, status="warning", says="no stack came at SIGURG", mend=mend)
