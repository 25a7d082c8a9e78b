"""Holds torch's TCPStore for one supervisor: a process of the training's interpreter.

Started with the path of this file, by peers.store; it speaks with its supervisor over its standard
streams, in frames of a length (4 bytes, network order) and JSON. It ends when that stream ends, and
ends itself when a call takes longer than it may: what hangs in the network hangs in here.

Only the standard library and torch; syntax of Python 3.8.
"""

import base64
import datetime as dt
import errno
import json
import os
import queue
import socket
import struct
import sys
import threading

NO_TORCH = 4
LATE = 5
LENGTH = struct.Struct(">I")
MOST = 1 << 28
READY = "ready"


def main():
    """Load torch, say so, and answer one request after the other."""
    # Beside this file lies a package; torch must find nothing of it under a name of its own.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    asked: queue.Queue = queue.Queue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    options = asked.get()
    try:
        from torch.distributed import TCPStore
    except Exception as error:
        _answer(out, {"no_torch": str(error)[:300] or type(error).__name__})
        os._exit(NO_TORCH)
    held = Held(TCPStore, options)
    _answer(out, {"loaded": True})
    while True:
        request = asked.get()
        limit = threading.Timer(options["call_s"], os._exit, (LATE,))
        limit.daemon = True
        limit.start()
        try:
            answer = held.do(request)
        except Exception as error:
            held.forget()
            answer = {"error": (str(error).splitlines() or [""])[0][:300] or type(error).__name__}
        limit.cancel()
        _answer(out, answer)


class Held:
    """The store, or a connection to it."""

    def __init__(self, kind, options):
        self._kind = kind
        self._host = options["host"]
        self._port = options["port"]
        self._prefix = options["prefix"]
        self._tasks = options["tasks"]
        self._leads = options["leads"]
        self._connect_s = options["call_s"] / 3
        self._store = None

    def do(self, request):
        """Answer one request; raises what torch raises."""
        if self._store is None:
            self._store = self._connect()
        if "record" in request:
            key = self._key("task-%d" % request["task"])
            self._store.set(key, base64.b64decode(request["record"]))
            return {}
        wanted = request["tasks"]
        found = self._store.multi_get([self._key("task-%d" % task) for task in wanted])
        records = {
            str(task): base64.b64encode(record).decode("ascii")
            for task, record in zip(wanted, found)
            if record
        }
        return {"records": records}

    def forget(self):
        """Connect anew at the next request; the store of the first task stays where it answers."""
        self._store = None

    def _key(self, name):
        return self._prefix + "/" + name

    def _connect(self):
        limit = dt.timedelta(seconds=self._connect_s)
        store = self._kind(
            self._host,
            self._port,
            is_master=self._leads,
            timeout=limit,
            wait_for_workers=False,
            **(_listening(self._host, self._port) if self._leads else {}),
        )
        if self._leads:
            # So that nobody has to wait for a key that is not there yet.
            for task in range(self._tasks):
                store.set(self._key("task-%d" % task), b"")
            store.set(self._key(READY), b"1")
            return store
        try:
            store.wait([self._key(READY)], limit)
        except Exception:
            raise OSError("what answers there is not the store of this job") from None
        return store


def _listening(host, port):
    """Where the store of the first task listens: at the address that was given, and no other.

    torch would listen at all addresses. It does where that one means nothing to this machine: a
    name with several of them, with none here (it is translated on the way), or, as Debian writes
    it into /etc/hosts, with that of the loopback for its own name.
    """
    if sys.platform == "win32":  # torch takes a file descriptor
        return {}
    try:
        found = {each[4]: each[0] for each in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)}
    except OSError:
        return {}
    if host == "localhost":
        found = {("127.0.0.1", port): socket.AF_INET}
    address, family = next(iter(found.items()), (("", 0), socket.AF_INET))
    strange = str(address[0]).startswith("127.") and host not in (address[0], "localhost")
    if len(found) != 1 or strange:
        return {}
    server = socket.socket(family)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(2048)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return {}
        raise
    return {"master_listen_fd": server.detach()}


def _listen(asked):
    """Requests of the supervisor; its end is ours, also in the middle of a call."""
    while True:
        head = _read(LENGTH.size)
        body = _read(LENGTH.unpack(head)[0]) if head is not None else None
        if body is None:
            os._exit(0)
        asked.put(json.loads(body.decode("utf-8")))


def _read(size):
    parts = []
    while size > 0:
        part = os.read(0, min(size, 1 << 16))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _answer(out, answer):
    body = json.dumps(answer).encode("utf-8")
    left = memoryview(LENGTH.pack(len(body)) + body)
    while left:
        left = left[os.write(out, left) :]


if __name__ == "__main__":
    main()
