"""A supervisor among its peers: tells, listens, and replaces the dead."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.actions import TakeOver
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.peers import Heard, JobView, Signs, Summary, hear, summarise
from watchdog_train.core.model import ProcessId
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.peers.protocol import Records
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.system import proc
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import open_regular

PUBLISH_EVERY_S = 1.0
LISTEN_EVERY_S = 0.25
FIRST_LOOK_S = 10.0
"""For a shared directory to answer at the start and at the end."""
TAKEN_LOOK_S = 4.0
"""A living supervisor says a word every second; a network file system shows it later."""
NOT_SEEN_AFTER_S = 45.0
STAY_S = 20.0
"""For the others to hear our last word, where it ends with us."""


class JobLink:
    """This task among its peers."""

    def __init__(self, task: JobTask, records: Records, system: ProcessSystem) -> None:
        self.task = task
        self._records = records
        self._system = system
        self._machine = machine_of(system)
        self._heard: dict[int, Heard] = {}
        self._stale: frozenset[_Word] = frozenset()
        self._dead: frozenset[ProcessId] = frozenset()
        self._listened_at = -LISTEN_EVERY_S
        self._published_at = -PUBLISH_EVERY_S
        self._began: float | None = None
        self._published: Summary | None = None
        self._sequence = 0
        self._sought: dict[str, float] = {}
        self.problem: str | None = None
        """Why our peers cannot be told anything at present."""

    @property
    def helper_pids(self) -> frozenset[int]:
        """Our children through which the peers are reached."""
        return self._records.helper_pids

    def ignore_the_dead(self) -> None:
        """At the start of a new run: what a dead supervisor has left here is of an earlier job.

        Of a supervisor on another machine nobody can tell: its word counts once it has changed.
        """
        found = [one for _, one in self._told(self._records.read_now(FIRST_LOOK_S))]
        self._dead = frozenset(
            ProcessId(one.pid, one.start) for one in found if self._alive(one) is False
        )
        self._stale = frozenset(_word(one) for one in found if self._alive(one) is None)

    def holder(self) -> Summary | None:
        """Another living supervisor that is this very task already."""
        told = dict(self._told(self._records.read_now(FIRST_LOOK_S)))
        other = told.get(self.task.task)
        if other is None or other.finished is not None or other.pid == os.getpid():
            return None
        alive = self._alive(other)
        if alive is None:
            alive = self._changes(other)
        return other if alive else None

    def _changes(self, other: Summary) -> bool:
        """Whether the word of a supervisor on another machine is replaced while we look."""
        until = time.monotonic() + TAKEN_LOOK_S
        while time.monotonic() < until:
            told = dict(self._told(self._records.read_now(until - time.monotonic())))
            newest = told.get(self.task.task)
            if newest is not None and _word(newest) != _word(other):
                return newest.finished is None
        return False

    def view(self, now: float) -> JobView:
        """The peers at this moment; their records are read a few times a second."""
        self._began = now if self._began is None else self._began
        if now - self._listened_at >= LISTEN_EVERY_S:
            self._listened_at = now
            for number, summary in self._told(self._records.read()):
                self._take(number, summary, now)
        peers = (
            heard.view(now, alive=self._alive(heard.summary))
            for _, heard in sorted(self._heard.items())
        )
        visible = self._visible(now)
        return JobView(peers=tuple(peers), visible=visible, listened_s=now - self._began)

    def _told(self, records: Mapping[int, bytes]) -> Iterator[tuple[int, Summary]]:
        """What records say of the task whose they are; what others write is not believed."""
        for number, record in records.items():
            summary = decode(record)
            if summary is not None and summary.task == number < self.task.tasks:
                yield number, summary

    def _take(self, number: int, summary: Summary, now: float) -> None:
        if number == self.task.task or ProcessId(summary.pid, summary.start) in self._dead:
            return
        if _word(summary) in self._stale:
            return
        self._heard[number] = hear(self._heard.get(number), summary, now)

    def _alive(self, summary: Summary) -> bool | None:
        if self.task.coordination is not None and summary.machine != self._machine:
            return None
        return self._system.is_alive(ProcessId(summary.pid, summary.start))

    def _visible(self, now: float) -> tuple[tuple[str, bool], ...]:
        """Of the checkpoints that peers propose, which ones are seen here."""
        if self.task.coordination is None:
            return ()
        proposals = (heard.summary.proposal for heard in self._heard.values())
        plans = (proposal.plan for proposal in proposals if proposal is not None)
        paths = {plan.checkpoint.path for plan in plans if plan.checkpoint is not None}
        self._sought = {path: self._sought.get(path, now) for path in paths}
        found = []
        for path, since in sorted(self._sought.items()):
            seen = self._records.sees(path)
            # A network file system may say for a minute that a new file is not there.
            if seen or (seen is False and now - since >= NOT_SEEN_AFTER_S):
                found.append((path, seen))
        return tuple(found)

    def publish(
        self, state: State, signs: Signs, now: float, *, places: tuple[str, ...] = ()
    ) -> None:
        """Tell the peers: at once when the stage has changed, else once a second."""
        summary = summarise(state, signs)
        if summary is None:
            return
        summary = _replace(summary, machine=self._machine, places=places)
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
            kind = self.task.kind
            self.problem = f"the peers of this {kind} cannot be told: {error.strerror or error}"

    def leave(self) -> None:
        """After our last word: whoever ends last leaves nothing behind."""
        self._records.flush()
        until = time.monotonic() + STAY_S
        while not self._all_others_have_ended():
            if self._records.stays or time.monotonic() > until:
                break
        else:
            self._records.remove()
        self.close()

    def close(self) -> None:
        """Hear and say nothing any more."""
        self._records.close()

    def _all_others_have_ended(self) -> bool:
        told = self._told(self._records.read_now(FIRST_LOOK_S))
        others = [summary for number, summary in told if number != self.task.task]
        return all(one.finished is not None or self._alive(one) is False for one in others)


_Word = tuple[str, int, int, int]


def _word(summary: Summary) -> _Word:
    return (summary.machine, summary.pid, summary.start, summary.sequence)


_replace = msgspec.structs.replace
_decoder = msgspec.json.Decoder(Summary)


def decode(record: bytes) -> Summary | None:
    """What a task has told; a record that is none says nothing."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decoder.decode(record)
    return None


def machine_of(system: ProcessSystem) -> str:
    """Within which the number of a process means something: host, boot and pid namespace."""
    namespace = proc.link("self", "ns/pid") or ""
    return f"{socket.gethostname()}/{system.boot_id() or ''}/{namespace}"


def replace_supervisor(action: TakeOver, children: ChildTable) -> str | None:
    """Start `wtrain adopt` for a peer's run; what it says goes into that run's directory.

    Returns:
        Why it could not be started, None when it was.
    """
    run_dir = Path(action.run_dir)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(open_regular(run_dir / "adopted.log", flags), "ab") as said:
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
