"""A process that does what it is told: `fork PATH KIND`, `end`. Ended by its parent's end or not.

Arguments: the socket it listens on, the socket it answers to, and "keeper" or "helper". A keeper
adopts orphans, starts the first child, and ends when nobody is left. A helper ends when its parent
has.
"""

import ctypes
import os
import signal
import socket
import sys


def serve(path: str, answers: str, *, helper: bool = False) -> None:
    here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.bind(path)
    here.sendto(str(os.getpid()).encode(), answers)
    parent = os.getppid()
    here.settimeout(0.05 if helper else None)
    while True:
        try:
            words = here.recv(4096).decode().split()
        except TimeoutError:
            if os.getppid() != parent:
                return
            continue
        if words[0] == "end":
            return
        if os.fork() == 0:
            here.close()
            start(words[1], answers, words[2])
            os._exit(0)


def start(path: str, answers: str, kind: str) -> None:
    again = [sys.executable, "-I", "-S", __file__, path, answers]
    if kind == "hidden":
        os.execve(sys.executable, again, {})
    if kind == "helper":
        os.execv(sys.executable, [*again, "helper", "multiprocessing.resource_tracker"])
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(path, answers)


def keep(path: str, answers: str) -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        start(path, answers, "spawn")
        os._exit(0)
    try:
        os.wait()  # with SIGCHLD ignored: until nobody is left
    except ChildProcessError:
        return


signal.signal(signal.SIGCHLD, signal.SIG_IGN)
role = sys.argv[3] if len(sys.argv) > 3 else "child"
if role == "keeper":
    keep(sys.argv[1], sys.argv[2])
else:
    serve(sys.argv[1], sys.argv[2], helper=role == "helper")
