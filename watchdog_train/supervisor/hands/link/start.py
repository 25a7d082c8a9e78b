"""What carries a link: a unix socket of this machine, or a process that talks to other machines."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from watchdog_train.core.starting.jobs import JobTask, address_of
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.children import ChildTable, module
from watchdog_train.supervisor.hands.link.channel import Channel, Dialler
from watchdog_train.supervisor.hands.link.peers import VARIABLE, Agent, Leader, Link, job_key
from watchdog_train.system.file_systems import (
    private_runtime_directory,
    release_runtime_directory,
    shared_bases,
    why_denied,
)

SPARE_DESCRIPTORS = 256
_BASE_CHARS = 60
"""A socket's path has 107 bytes on Linux, 103 on macOS; ours adds 43 at most."""
_LOCAL_PEERCRED = 1  # sys/un.h of macOS


def meet(task: JobTask, children: ChildTable) -> Link:
    """The link of a task; the first task is the leader. WtrainError (78): no way to connect."""
    job, name, leads = task.job, task.name_of(task.task), task.task == 0
    if leads:
        make_room(task.tasks - 1)
    if task.coordination is not None:
        relay = _relay(task.coordination, children, leads=leads)
        return Leader(job, relay) if leads else Agent(name, job, relay)
    return Leader(job, Listener(job)) if leads else Agent(name, job, Dialler(lambda: dial(job)))


def make_room(machines: int) -> None:
    """Raise the limit of open files to SPARE_DESCRIPTORS and one per machine, or WtrainError."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = machines + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        why = f"wtrain needs {needed} open files for them, the limit is {hard}"
        raise _refusal(f"{machines} machines", why, f"raise it: ulimit -Hn {needed}, by root")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Listener:
    """A leader's unix socket, in a private directory; one a job and machine."""

    def __init__(self, job: str) -> None:
        """Listen; WtrainError if another leader lives, or there is no place for a socket."""
        folder = _folder(job, make=True)
        if folder is None:
            why = f"no private directory can be made for a socket: {why_denied('link', _bases())}"
            raise _refusal(job, why, "have it removed by its owner or root, or make room there")
        self.path = folder / "leader"
        self.lock = os.open(folder, os.O_RDONLY)
        self.socket = _unix_socket()
        try:
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path.unlink(missing_ok=True)  # of a leader that was killed
            self.socket.bind(str(self.path))
            self.socket.listen(128)
        except OSError as error:
            self.socket.close()
            os.close(self.lock)
            lives = isinstance(error, BlockingIOError)
            why = "another leader of this job lives here" if lives else f"{error.strerror}"
            raise _refusal(str(self.path), why, "wtrain status shows who leads it") from error

    def accept(self, _now: float) -> list[Channel]:
        """New connections of our own user; none while no descriptor is left."""
        found = []
        with suppress(OSError):
            while True:
                link, _ = self.socket.accept()
                if _is_ours(link):
                    found.append(Channel(link))
                else:
                    link.close()
        return found

    def close(self) -> None:
        self.socket.close()
        release_runtime_directory(self.path.parent, with_content=True)
        os.close(self.lock)


def dial(job: str) -> socket.socket:
    """Connect to the leader of a job on this machine; OSError without one."""
    folder = _folder(job, make=False)
    if folder is None:
        raise FileNotFoundError(job)
    link = _unix_socket()
    try:
        link.connect(str(folder / "leader"))
    except OSError:
        link.close()
        raise
    return link


def _folder(job: str, *, make: bool) -> Path | None:
    # Not the runtime directory of a login, which one task of a job may have and another not.
    name = blake2b(job.encode(), digest_size=8).hexdigest()
    return private_runtime_directory("link", name, make=make, bases=_bases())


def _bases() -> list[Path]:
    return [base for base in shared_bases() if len(os.fsencode(base)) <= _BASE_CHARS]


def _unix_socket() -> socket.socket:
    if sys.platform == "win32":
        raise _refusal(
            "Windows", "it has no link between tasks or machines", "start each by itself"
        )
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    return found


def _is_ours(link: socket.socket) -> bool:
    """Whether our own user is at the other end; elsewhere only the directory protects it."""
    if sys.platform == "linux":
        found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return bool(struct.unpack("3i", found)[1] == os.geteuid())
    if sys.platform == "darwin":
        found = link.getsockopt(0, _LOCAL_PEERCRED, 76)
        return bool(struct.unpack_from("2I", found)[1] == os.geteuid())
    return True


def _relay(address: str, children: ChildTable, *, leads: bool) -> Dialler:
    """Through the process that connects to other machines, restarted whenever it exits."""
    _refuse_without_zeromq(address)
    (host, port), key = address_of(address), job_key(os.environ)
    listener = _listener(address, host, port) if leads else None
    fds = () if listener is None else (listener.fileno(),)

    def start() -> socket.socket:
        ours, theirs = socket.socketpair()
        env = {name: text for name, text in os.environ.items() if name != VARIABLE}
        argv = module("watchdog_train.supervisor.hands.link.zeromq")
        Channel(ours).put(b"", json.dumps([host, port, key, *fds]).encode())
        with theirs:
            end = theirs.fileno()
            try:
                children.spawn(argv, name="link", deadline_s=None, env=env, stdin=end, pass_fds=fds)
            except OSError:
                ours.close()
                raise
        return ours

    return Dialler(start) if listener is None else Dialler(start, listener.close)


def _refuse_without_zeromq(address: str) -> None:
    """Ask the interpreter as the link's process has it: without PYTHONPATH and the user's site."""
    hint = f"{sys.executable} -m pip install 'watchdog-train[nodes]'"
    if find_spec("zmq") is None:
        raise _refusal(address, "pyzmq is not installed", hint)
    command = [sys.executable, "-I", "-c", "import zmq"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        why = f"pyzmq is not installed where wtrain is; PYTHONPATH is not used for it: {said}"
        raise _refusal(address, why, hint)


def _listener(address: str, host: str, port: int) -> socket.socket:
    """On the host's address if this machine has it, else on every address (`host` is empty)."""
    both = not host and socket.has_dualstack_ipv6()
    try:
        found = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=4096,  # all agents may come at once
            dualstack_ipv6=both,
        )
    except OSError as error:
        if host and error.errno != errno.EADDRINUSE:
            return _listener(address, "", port)
        hint = "start the first task once, or choose another port"
        raise _refusal(address, f"{error.strerror}", hint) from error
    if found.getsockname()[0] == "127.0.1.1":  # Debian's own: others cannot come there
        found.close()
        return _listener(address, "", port)
    found.setblocking(False)
    return found


def _refusal(context: str, message: str, hint: str) -> WtrainError:
    return WtrainError(message, context=context, hint=hint, reference="link")
