"""Hangs of the main process, each of the first attempt only: hangs.py KIND.

All come after 20 steps but `import_hang`, which comes before the first, and `hang_after_finish`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from zoo import Training, once, ready

HELPER = "import time; time.sleep(1e6)"
TAKE = "import filelock, os; filelock.SoftFileLock('data.lock').acquire(); os._exit(9)"


def locked_twice() -> None:
    ready()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def socket_read() -> None:
    """A read from a peer that accepted the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.sendall(b"GET /shard-0007 HTTP/1.0\r\n\r\n")
        ready()
        client.recv(1)


def ctypes_gil(library: ctypes.CDLL | None = None) -> None:
    """One pthread mutex is locked twice, in C, with the GIL held: no Python thread can run."""
    library = library or ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    ready()
    library.pthread_mutex_lock(mutex)


def ctypes_nogil() -> None:
    """The same without the GIL: other Python threads continue."""
    ctypes_gil(ctypes.CDLL(None))


def import_hang() -> None:
    """Reading from a FIFO that nobody will ever write to."""
    os.mkfifo("weights.bin")
    ready()
    with open("weights.bin", "rb") as file:
        file.read()


def daemonize(env: dict[str, str]) -> None:
    """Starts a helper as a daemon does: fork, setsid, fork, exec."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("helpers.txt", "a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            os.execve(sys.executable, [sys.executable, "-S", "-c", HELPER], env)
        os._exit(0)
    os.wait()


def double_fork() -> None:
    """With helpers whose parent is gone and whose session is their own; pids in helpers.txt.

    One has no token: only a subreaper finds it.
    """
    daemonize(dict(os.environ))
    daemonize({})
    subprocess.Popen([sys.executable, "-S", "-c", HELPER], start_new_session=True)
    while Path("helpers.txt").read_text("ascii").count("\n") < 2:
        time.sleep(0.01)
    locked_twice()


def dead_file_lock() -> None:
    """Waiting for a lock file whose owner was killed before it could remove it."""
    import filelock

    subprocess.run([sys.executable, "-c", TAKE], check=False)
    ready()
    # The owner's pid is in the file; a newer filelock would notice that it is dead.
    with open("data.lock", "w", encoding="ascii"):
        pass
    with filelock.SoftFileLock("data.lock"):
        pass


def main(kind: str) -> None:
    if kind == "ignore_sigterm":  # only SIGKILL ends it
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    training = Training(0.05)
    training.resume(os.environ.get("WTRAIN_RESUME_FROM"))
    if kind not in ("import_hang", "hang_after_finish"):
        training.train(20)
    if kind != "hang_after_finish" and once("hung-once"):
        globals().get(kind, locked_twice)()
    training.train(40)
    training.finish()
    if kind == "hang_after_finish":  # an exit handler joins a thread that never ends
        threading.Thread(target=threading.Event().wait).start()
        ready()


if __name__ == "__main__":
    main(sys.argv[1])
