"""Records in torch's TCPStore, which a process of the training's interpreter holds.

Must be asked by a thread, not by a supervisor's loop: a call takes up to CALL_S. Nothing of torch
is in our own process, and what hangs in the network hangs in the other one, which ends itself then.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchdog_train.core.starting.place import StorePlace
from watchdog_train.peers.directory import RECORD_CAP_BYTES

PROGRAM = Path(__file__).resolve().parent.parent / "store_process.py"
CALL_S = 9.0
"""In one call, connecting included; then the process ends itself."""
MARGIN_S = 3.0
"""Beyond that, before it is taken for dead."""
LOAD_S = 90.0
"""To load torch: seconds, but minutes from a cold network disk under load."""
AGAIN_FIRST_S, AGAIN_MOST_S = 2.0, 60.0
"""Before a process that has ended is replaced: each costs the training seconds of a core."""
_LENGTH = struct.Struct(">I")
_MOST_BYTES = 1 << 29
_CLOSE_S = 2.0


class StoreRecords:
    """One key a task. Held by the first task's process; the others connect to that."""

    def __init__(
        self,
        place: StorePlace,
        pythons: Sequence[str],
        folder: str,
        task: int,
        tasks: int,
        *,
        call_s: float = CALL_S,
    ) -> None:
        """Nothing is started yet: the first call does.

        Args:
            place: where the store listens.
            pythons: interpreters of which one has torch, the likeliest first.
            folder: name of the job, which tells its keys from those of others.
            task: our own number; 0 holds the store.
            tasks: how many there are.
            call_s: in one call of the store.
        """
        self.place = place
        self._pythons = list(pythons)
        self._leads = task == 0
        self._options = {
            "host": place.host,
            "port": place.port,
            "prefix": f"wtrain/{folder}",
            "tasks": tasks,
            "leads": self._leads,
            "call_s": call_s,
        }
        self._limit_s = call_s + MARGIN_S
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded = False
        self._again_s = AGAIN_FIRST_S
        self._not_before = 0.0
        self.problem: str | None = None
        self.cannot: str | None = None
        """Why it will never be reached: there is no torch."""

    @property
    def stays(self) -> bool:
        """The store ends with the process of the first task."""
        return not self._leads

    @property
    def helper_pids(self) -> frozenset[int]:
        """The process that holds the store, or a connection to it."""
        process = self._process
        return frozenset() if process is None else frozenset({process.pid})

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of this task.

        Raises:
            OSError: it did not reach the store.
        """
        self._ask({"task": task, "record": base64.b64encode(record).decode("ascii")})

    def read_of(self, tasks: Iterable[int]) -> Mapping[int, bytes]:
        """The newest record of each of these; nothing while the store cannot be reached."""
        wanted = sorted(set(tasks))
        try:
            said = self._ask({"tasks": wanted}).get("records")
        except OSError:
            return {}
        found = {}
        for task in wanted:
            text = said.get(str(task)) if isinstance(said, dict) else None
            if isinstance(text, str) and len(text) <= 2 * RECORD_CAP_BYTES:
                with suppress(ValueError):
                    found[task] = base64.b64decode(text)
        return found

    def remove(self) -> None:
        """The store goes with the process that holds it."""
        self.close()

    def close(self) -> None:
        """End the process; it ends by itself, too, when we are gone."""
        process, self._process, self._loaded = self._process, None, False
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        for kill in (False, True):
            if kill:
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)
                return

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._start()
            answer = self._exchange(request, self._limit_s)
        except OSError as error:
            self.close()
            self.problem = error.strerror or str(error)
            raise OSError(error.errno or errno.ENOTCONN, self.problem) from error
        said = answer.get("error")
        if said is not None:
            self.problem = f"{self.place.words}: {str(said)[:300]}"
            raise OSError(errno.ENOTCONN, self.problem)
        self.problem, self._again_s = None, AGAIN_FIRST_S
        return answer

    def _start(self) -> None:
        """Have a process that has loaded torch.

        Raises:
            OSError: there is none, and none may be started yet.
        """
        if self._loaded:
            return
        if self.cannot is not None or time.monotonic() < self._not_before:
            raise OSError(errno.ENOTCONN, self.cannot or self.problem or "it is not reached")
        self._not_before = time.monotonic() + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_MOST_S)
        said = []
        while self._pythons:
            python = self._pythons[0]
            try:
                self._process = self._spawn(python)
                answer = self._exchange(self._options, LOAD_S)
            except FileNotFoundError as error:
                said.append(f"{python}: {error.strerror}")
            else:
                if answer.get("loaded"):
                    self._loaded = True
                    return
                said.append(f"{python}: {str(answer.get('no_torch'))[:200]}")
            self.close()
            self._pythons.pop(0)
        self.cannot = f"no Python with torch was found to hold the store ({'; '.join(said)})"
        raise OSError(errno.ENOTCONN, self.cannot)

    @staticmethod
    def _spawn(python: str) -> subprocess.Popen[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("WTRAIN_")
        }
        # A few megabytes of its own, no GPU, one thread: it lives beside a training.
        environment.update(
            CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="FATAL"
        )
        return subprocess.Popen(
            [python, str(PROGRAM)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=sys.platform != "win32",
        )

    def _exchange(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """One request and its answer.

        Raises:
            OSError: the process has ended, or is late.
        """
        process, until = self._process, time.monotonic() + limit_s
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError(errno.ENOTCONN, "the process that holds the store has ended")
        body = json.dumps(request).encode("utf-8")
        _write(process.stdin.fileno(), _LENGTH.pack(len(body)) + body, until)
        (size,) = _LENGTH.unpack(_read(process.stdout.fileno(), _LENGTH.size, until))
        if size > _MOST_BYTES:
            raise OSError(errno.EMSGSIZE, "the process that holds the store answers nonsense")
        try:
            answer = json.loads(_read(process.stdout.fileno(), size, until))
        except ValueError as error:
            why = "the process that holds the store answers nonsense"
            raise OSError(errno.EBADMSG, why) from error
        return answer if isinstance(answer, dict) else {}


def _write(descriptor: int, data: bytes, until: float) -> None:
    left = memoryview(data)
    while left:
        _wait(descriptor, until, write=True)
        left = left[os.write(descriptor, left[:4096]) :]


def _read(descriptor: int, size: int, until: float) -> bytes:
    parts = []
    while size > 0:
        _wait(descriptor, until, write=False)
        part = os.read(descriptor, min(size, 1 << 16))
        if not part:
            raise OSError(errno.EPIPE, "the store was not reached in time")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(descriptor: int, until: float, *, write: bool) -> None:
    left = until - time.monotonic()
    ready = left > 0 and any(
        select.select([] if write else [descriptor], [descriptor] if write else [], [], left)
    )
    if not ready:
        raise OSError(errno.ETIMEDOUT, "the store was not reached in time")
