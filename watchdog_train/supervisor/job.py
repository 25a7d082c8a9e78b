"""A supervisor among its peers: joins a job, tells, listens, and replaces the dead."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.actions import TakeOver
from watchdog_train.core.jobs import JobTask, find_task, is_part_of_more
from watchdog_train.core.model import ProcessId
from watchdog_train.core.peers import Heard, JobView, Signs, Summary, hear, summarise
from watchdog_train.core.state import State
from watchdog_train.peers.directory import DirectoryRecords
from watchdog_train.peers.protocol import Records
from watchdog_train.store.places import private_runtime_directory
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.system.protocol import ProcessSystem

PUBLISH_EVERY_S = 1.0
LISTEN_EVERY_S = 0.25
MPI_STARTERS = ("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "prterun", "prted", "orted")
_MOST_ANCESTORS = 32


class JobLink:
    """This task among its peers."""

    def __init__(self, task: JobTask, records: Records, system: ProcessSystem) -> None:
        self.task = task
        self._records = records
        self._system = system
        self._heard: dict[int, Heard] = {}
        self._stale: frozenset[ProcessId] = frozenset()
        self._listened_at = -LISTEN_EVERY_S
        self._published_at = -PUBLISH_EVERY_S
        self._published: Summary | None = None
        self._sequence = 0
        self.problem: str | None = None
        """Why our peers cannot be told anything at present."""

    def ignore_the_dead(self) -> None:
        """At the start of a new run: what a dead supervisor has left here is of an earlier job."""
        found = (decode(record) for record in self._records.read().values())
        self._stale = frozenset(
            ProcessId(one.pid, one.start)
            for one in found
            if one is not None and self._alive(one) is False
        )

    def is_taken(self) -> bool:
        """Whether another living supervisor is this very task already."""
        record = self._records.read().get(self.task.task)
        other = decode(record) if record is not None else None
        if other is None or other.finished is not None or other.pid == os.getpid():
            return False
        return self._alive(other) is not False

    def view(self, now: float) -> JobView:
        """The peers at this moment; their records are read a few times a second."""
        if now - self._listened_at >= LISTEN_EVERY_S:
            self._listened_at = now
            for record in self._records.read().values():
                self._take(record, now)
        peers = (
            heard.view(now, alive=self._alive(heard.summary))
            for _, heard in sorted(self._heard.items())
        )
        return JobView(peers=tuple(peers))

    def _take(self, record: bytes, now: float) -> None:
        summary = decode(record)
        if summary is None or summary.task == self.task.task:
            return
        if ProcessId(summary.pid, summary.start) in self._stale:
            return
        self._heard[summary.task] = hear(self._heard.get(summary.task), summary, now)

    def _alive(self, summary: Summary) -> bool | None:
        return self._system.is_alive(ProcessId(summary.pid, summary.start))

    def publish(self, state: State, signs: Signs, now: float) -> None:
        """Tell the peers: at once when the stage has changed, else once a second."""
        summary = summarise(state, signs)
        if summary is None:
            return
        same = self._published is not None and summary == _replace(self._published, signs=signs)
        if same and now - self._published_at < PUBLISH_EVERY_S:
            return
        self._published, self._published_at = summary, now
        self._sequence += 1
        try:
            record = msgspec.json.encode(_replace(summary, sequence=self._sequence))
            self._records.publish(self.task.task, record)
            self.problem = None
        except OSError as error:
            self.problem = f"the peers of this task cannot be told: {error.strerror or error}"

    def leave(self) -> None:
        """After our last word: whoever ends last leaves nothing behind."""
        others = [
            summary
            for record in self._records.read().values()
            if (summary := decode(record)) is not None and summary.task != self.task.task
        ]
        if all(one.finished is not None or self._alive(one) is False for one in others):
            self._records.remove()


_replace = msgspec.structs.replace
_decoder = msgspec.json.Decoder(Summary)


def decode(record: bytes) -> Summary | None:
    """What a task has told; a record that is none says nothing."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decoder.decode(record)
    return None


def link_to(task: JobTask | None, system: ProcessSystem) -> JobLink | None:
    """The link of a task; None of no task, or where no private place can be had."""
    if task is None:
        return None
    path = private_runtime_directory("jobs", task.folder, make=True)
    return None if path is None else JobLink(task, DirectoryRecords(path), system)


def join(environment: Mapping[str, str], system: ProcessSystem) -> JobLink | None:
    """Join the job of which this new run is a task; None when it is none, or has its supervisor."""
    task = find_task(environment, mpi_starter=_mpi_starter(environment, system))
    link = link_to(task, system)
    if link is None or link.is_taken():
        return None
    link.ignore_the_dead()
    return link


def _mpi_starter(environment: Mapping[str, str], system: ProcessSystem) -> str | None:
    """The nearest process above us that starts MPI tasks: for those, the job has no other name."""
    if not is_part_of_more(environment) or not {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"} & set(
        environment
    ):
        return None
    rows = system.all_processes()
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        row = rows.get(pid)
        if row is None:
            return None
        if row.name in MPI_STARTERS:
            return f"{row.pid}-{row.start}"
        pid = row.ppid
    return None


def replace_supervisor(action: TakeOver, children: ChildTable) -> str | None:
    """Start `wtrain adopt` for a peer's run; what it says goes into that run's directory.

    Returns:
        Why it could not be started, None when it was.
    """
    run_dir = Path(action.run_dir)
    try:
        with (run_dir / "adopted.log").open("ab") as said:
            child = children.spawn(
                [sys.executable, "-I", "-m", "watchdog_train", "adopt", str(run_dir)],
                name=f"take-over-{action.task}",
                deadline_s=None,
                stdout=said,
                stderr=said,
            )
    except OSError as error:
        return str(error)
    children.release(child)  # it outlives us, and its run is its own
    return None
