"""Where records of simulated nodes lie: real files, or a real store; see scripts/bench/nodes."""

from __future__ import annotations

import base64
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from watchdog_train.peers.shared import RECORDS_A_SECOND, TURN_S

from tests.support import free_port
from watchdog_train.peers.directory import DirectoryRecords
from watchdog_train.store_process import Held

STORE = "store"


@dataclass
class Load:
    """What was asked of the place where records lie."""

    reads: int = 0
    """Records."""
    calls: int = 0
    """That have read them: one a file, or one a round of the store."""
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    read_s: float = 0.0
    """CPU time of this process, as is the next."""
    write_s: float = 0.0


class Directory:
    """Files in one directory: a call a record."""

    def __init__(self, place: Path, tasks: int) -> None:
        self.records = [DirectoryRecords(place)] * tasks
        self.calls_a_round = tasks

    def close(self) -> None:
        """Who has made the directory removes it."""


class Store:
    """torch's TCPStore: a call for all records. Its server ends with the first connection."""

    calls_a_round = 1

    def __init__(self, tasks: int) -> None:
        from torch.distributed import TCPStore

        place = {"host": "127.0.0.1", "port": free_port(), "prefix": "bench", "call_s": 60.0}
        self.records = [
            StoreClient(Held(TCPStore, {**place, "tasks": tasks, "leads": number == 0}))
            for number in range(tasks)
        ]
        for one in self.records:
            one.read_of([0])  # connects; the first is the server

    def close(self) -> None:
        """End the connections, the server's last."""
        while self.records:
            self.records.pop()


class StoreClient:
    """What peers/store.py asks of the process beside a supervisor."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of a task."""
        self.held.do({"task": task, "record": base64.b64encode(record).decode("ascii")})

    def read_of(self, tasks: Iterable[int]) -> dict[int, bytes]:
        """Those that have told something."""
        said = self.held.do({"tasks": list(tasks)})["records"]
        return {int(task): base64.b64decode(text) for task, text in said.items()}


Place = Directory | Store


class Link:
    """The thread of one supervisor (peers/shared.py) on the simulated clock, with real records.

    It writes a new record at once; a round of reading begins when it is due, whatever is written.
    """

    def __init__(self, place: Place, task: int, tasks: int, latency_s: float, load: Load) -> None:
        self.records = place.records[task]
        self.calls = place.calls_a_round
        self.task, self.everybody = task, range(tasks)
        self.turn_s = max(TURN_S, tasks / RECORDS_A_SECOND)
        self.latency_s, self.load = latency_s, load
        self.busy_until = 0.0
        self.due_at = random.random() * self.turn_s
        self.shown: list[tuple[float, dict[int, bytes]]] = []
        self.found: dict[int, bytes] = {}

    def publish(self, record: bytes, now: float) -> None:
        began = time.process_time()
        self.records.publish(self.task, record)
        self.load.write_s += time.process_time() - began
        self.load.writes += 1
        self.load.written_bytes += len(record)
        self.busy_until = max(now, self.busy_until) + self.latency_s

    def turn(self, now: float) -> None:
        """A round, if it is due and the last one has ended."""
        if now < self.due_at or now < self.busy_until:
            return
        began = time.process_time()
        found = dict(self.records.read_of(self.everybody))
        self.load.read_s += time.process_time() - began
        self.load.calls += self.calls
        self.load.reads += len(self.everybody)
        self.load.read_bytes += sum(map(len, found.values()))
        self.due_at = now + self.turn_s
        self.busy_until = now + self.latency_s * self.calls
        self.shown.append((self.busy_until, found))

    def read(self, now: float) -> dict[int, bytes]:
        """What the newest round that has ended by now has found."""
        while self.shown and self.shown[0][0] <= now:
            self.found = self.shown.pop(0)[1]
        return self.found


@contextmanager
def place_of(name: str, size: int) -> Iterator[Place]:
    """Where the records of one job lie."""
    if name == STORE:
        store = Store(size)
        yield store
        store.close()
        return
    with tempfile.TemporaryDirectory(dir=name, prefix="wtrain-bench-") as folder:
        yield Directory(Path(folder) / "meet", size)
