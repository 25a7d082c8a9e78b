"""Processes and their threads as a graph: who waits for whom, with all that could end the wait."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.diagnosis.collectives import compare, from_log, pending
from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.first_failure import first_failures
from watchdog_train.core.diagnosis.log_search import LogIndex
from watchdog_train.core.diagnosis.stacks import ThreadStack, any_matches, frame_matches
from watchdog_train.core.model import ExceptionFact
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.progress import spans
from watchdog_train.explain import frame_sets
from watchdog_train.explain import waits as of_thread
from watchdog_train.explain.graph import Waits
from watchdog_train.explain.releasers import dead_releaser

_WORLD_CAP = 4096
_FOR_A_HELPER = (
    w.PipeWait, w.PollWait, w.SharedSemaphoreWait, w.ChildWait, x.QueueWait, x.BatchWait,
)  # fmt: skip
"""Waits that an exited helper should have ended."""
_HIDING = (x.StoreWait, w.DeviceWait)
_HIDES = f"{frame_sets.WAITS_FOR_RANKS} || {frame_sets.SYNCHRONISES}"
_LIBRARY = re.compile(r"\A(?:nccl|p?mpi_)")
_OF_SCRIPTS = ("reducedict", "reduceloss", "reducetensor", "reduceval", "reducemean", "average")
"""Names that many scripts give their own function around an all-reduce."""

Standing = Literal[
    "alone", "different-operations", "partly-named", "different-places", "some-left", "same", "none"
]


class _Node(msgspec.Struct, kw_only=True):
    """A process by its deciding thread, or one of its other threads (`inner`)."""

    process: ProcessEvidence
    thread: ThreadStack | None
    doing: x.Doing
    idle: bool
    inner: bool = False
    died: ExceptionFact | None = None
    """The exception that ended the only thread that could have ended this wait."""

    @property
    def who(self) -> x.Who:
        return self.process.who

    @property
    def has_vanished(self) -> bool:
        """A worker or other helper, no rank, that has exited."""
        return self.process.ended is not None and self.process.ended.end.helper is not None


class Chains:
    """The processes of one piece of evidence as nodes, numbered; `waits` is their graph."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.nodes: list[_Node] = []
        self._by_pid: dict[tuple[int, int], int] = {}
        self._inner: dict[int, list[int]] = {}
        self.several = _trains_with_others(evidence)
        for process in evidence.processes:
            if process.role != "keeper":
                self._add(process)
        self.ranks = [n for n, node in enumerate(self.nodes) if self._is_rank(node)]
        if not any(isinstance(self.nodes[n].doing, x.CollectiveWait) for n in self.ranks):
            for at in self.ranks:
                if _dismantles(self.nodes[at].process):
                    self.nodes[at].doing = x.CollectiveWait(op="destroy_process_group")
        self.records = (*evidence.collectives, *from_log(LogIndex(evidence.logs).lines()))
        self.recorded = compare(self.records)
        self.first_ends = self._first_bad_ends()
        self._away = [n for n in self.ranks if self._is_away(n)]
        self._unseen = self.unseen()
        numbers = {self._rank(n) for n in self.ranks}
        size = min(evidence.world_size or len(self.ranks), _WORLD_CAP)
        self._everybody = numbers == set(range(size)) and not self._unseen
        self._operations: dict[int, str] = {}
        for at in self.ranks:
            doing = self.nodes[at].doing
            if isinstance(doing, x.CollectiveWait) and doing.op:
                self._operations[at] = plain_operation(doing.op)
        for at in self.ranks:
            self.nodes[at].doing = self._with_ranks(at)
        for node in self.nodes:
            if isinstance(node.doing, x.BatchWait):
                owing = tuple(
                    self.nodes[n].who for n in self._workers(node) if not self.nodes[n].idle
                )
                node.doing = msgspec.structs.replace(node.doing, workers=owing)
            children = [self.nodes[n].process for n in self._children_of(node.process)]
            if isinstance(node.doing, x.LoopWait) and node.process.wait and children:
                node.doing = node.process.wait
            if not any(map(of_thread.is_at_work, children)):
                alone = isinstance(node.doing, x.LoopWait) or self._waits_alone(node)
                found = node.process.died if alone else dead_releaser(node.process, node.thread)
                node.died = found
        self.waits = {at: self._waits(at) for at in range(len(self.nodes))}

    def _add(self, process: ProcessEvidence) -> None:
        thread = of_thread.deciding_thread(process)
        doing = of_thread.doing(process, thread, several=self.several)
        inner = [
            (other, of_thread.doing(process, other, several=self.several))
            for other in of_thread.working_threads(process)
        ]
        inside = of_thread.started_by(process, thread, several=self.several)
        if inside is not None and not isinstance(doing, (w.Stopped, x.End)):
            for other, found in inner:  # backward runs its collectives in threads of autograd's
                if isinstance(found, x.CollectiveWait) and found.op is not None:
                    thread, doing = other, found
                    break
        if isinstance(doing, x.CollectiveWait):
            doing = msgspec.structs.replace(doing, inside=inside)
        if isinstance(doing, w.SleepWait):
            doing = msgspec.structs.replace(doing, polls=process.polls)
        at = len(self.nodes)
        self._by_pid[process.identity] = at
        self.nodes.append(
            _Node(process=process, thread=thread, doing=doing, idle=of_thread.is_idle(process))
        )
        inner = [(other, found) for other, found in inner if other is not thread]
        self._inner[at] = [*range(at + 1, at + 1 + len(inner))]
        self.nodes += [
            _Node(process=process, thread=other, doing=found, idle=False, inner=True)
            for other, found in inner
        ]

    @staticmethod
    def _is_rank(node: _Node) -> bool:
        return node.process.role == "rank" and not node.inner

    def _waits_alone(self, node: _Node) -> bool:
        """Whether it waits for a queue, event or condition and no thread can wake it."""
        told = isinstance(node.doing, x.QueueWait) or (
            isinstance(node.doing, x.PythonLockWait) and node.doing.kind in ("event", "condition")
        )
        return told and node.process.sealed is True and not of_thread.working_threads(node.process)

    def _first_bad_ends(self) -> tuple[int, ...]:
        """The nodes that failed first; several if their order is not known."""
        found = []
        for process, end in first_failures(self.evidence.processes, self.evidence.logs):
            at = self._by_pid.get(process.identity)
            doing = self.nodes[at].doing if at is not None else None
            if at is not None and isinstance(doing, x.End):
                found.append(at)  # with facts known from a launcher alone
                told = msgspec.structs.replace(doing, code=end.code, signal=end.signal)
                self.nodes[at].doing = told
        return tuple(found)

    # -- ranks ----------------------------------------------------------------------------------
    def _with_ranks(self, at: int) -> x.Doing:
        """The same wait, with missing ranks and those in another operation."""
        node = self.nodes[at]
        if not isinstance(node.doing, (x.CollectiveWait, x.StoreWait)):
            return node.doing
        absent = [self._rank(n) for n in self._away if n != at]
        unseen = [] if absent else list(self._unseen)
        seen = spans({rank for rank in [*absent, *unseen] if rank is not None})
        if isinstance(node.doing, x.StoreWait):
            return msgspec.structs.replace(node.doing, absent=seen)
        other = [self._rank(n) for n in self._in_others(at)]
        op, seq = pending(self.records, self._rank(at))
        if op and node.doing.op and plain_operation(op) != plain_operation(node.doing.op):
            seq = None  # of another thread
        return msgspec.structs.replace(
            node.doing,
            op=node.doing.op or op,
            seq=seq,
            absent=seen,
            mismatched=spans(rank for rank in other if rank is not None),
        )

    def _is_away(self, at: int) -> bool:
        """Ended, or read and in nothing that may be a wait for other ranks."""
        doing = self.nodes[at].doing
        if isinstance(doing, (x.CollectiveWait, *_HIDING)):
            return False
        return not isinstance(doing, w.UnknownWait) or self.nodes[at].thread is not None

    def _in_others(self, at: int) -> list[int]:
        """The ranks that are in another collective than this one."""
        mine = self._operations.get(at)
        return [n for n, other in self._operations.items() if mine is not None and other != mine]

    def _rank(self, at: int) -> int | None:
        return self.nodes[at].process.rank

    def unseen(self) -> tuple[int, ...]:
        """Ranks of the job with neither a stack nor an end."""
        size = min(self.evidence.world_size or 0, _WORLD_CAP)
        known = {self._rank(n) for n in self.ranks if not self._is_blind(n)}
        return tuple(sorted(set(range(size)) - known))

    def _is_blind(self, at: int) -> bool:
        node = self.nodes[at]
        return isinstance(node.doing, w.UnknownWait) and node.thread is None

    def shares_group(self, at: int) -> bool:
        """Whether several threads of a rank are in collectives of one group, by its records."""
        threads = (at, *self._inner.get(at, ()))
        several = sum(isinstance(self.nodes[n].doing, x.CollectiveWait) for n in threads) > 1
        open_ones = [
            (fact.last_enqueued or 0) - (fact.last_completed or 0)
            for fact in self.records
            if fact.rank == self._rank(at)
        ]
        return several and [count > 1 for count in open_ones if count > 0] == [True]

    def standing(self) -> tuple[Standing, frozenset[tuple[int, int]]]:
        """How the ranks compare, and which are in no collective while others wait in one.

        Among ranks in different collectives it names no culprit.
        """
        gone = {at for at in self.ranks if self.nodes[at].process.state in ("Z", "X")}
        ranks = [at for at in self.ranks if any(t.frames for t in self.nodes[at].process.threads)]
        waits = {at: self._collective(at) for at in ranks if at not in gone}
        waiting = [wait for wait in waits.values() if wait is not None]
        left = gone | {at for at, wait in waits.items() if wait is None}
        named = [operation for operation, _ in waiting if operation]
        standing: Standing = "same"
        if not waiting:
            standing = "none" if len(waits) > 1 else "alone"
        elif len(waits) + len(gone) < 2:
            standing = "alone"
        elif left:
            return "some-left", frozenset(self.nodes[at].process.identity for at in left)
        elif len(set(named)) > 1:
            standing = "different-operations"
        elif named and len(named) < len(waiting):
            standing = "partly-named"
        elif len({place for _, place in waiting if place}) > 1:
            standing = "different-places"
        return standing, frozenset()

    def _collective(self, at: int) -> tuple[str, object] | None:
        """Operation and caller of a rank's collective; empty if hidden; None: in none."""
        nodes = [self.nodes[n] for n in (at, *self._inner.get(at, ()))]
        for node in nodes:
            if isinstance(node.doing, x.CollectiveWait) and node.doing.op:
                own, _ = of_thread.places(node.thread)
                return plain_operation(node.doing.op), own and (own.function, own.file)
        hides = f"{_HIDES} || {frame_sets.BACKWARD}" if self.several else _HIDES
        frames = (frame for node in nodes if node.thread for frame in node.thread.frames)
        hidden = any(isinstance(node.doing, x.CollectiveWait) for node in nodes)
        return ("", None) if hidden or any_matches(hides, frames) else None

    # -- edges ----------------------------------------------------------------------------------
    def _waits(self, at: int) -> Waits:  # noqa: PLR0912 - one case for each kind of wait
        """The nodes that can end the wait of one node."""
        node = self.nodes[at]
        doing = node.doing
        timed = bool(getattr(doing, "timed", False))
        if node.died is not None:
            return Waits()
        if node.idle:
            parent = self._by_pid.get((node.process.part, node.process.ppid))
            return Waits(any_of=() if parent is None else (parent,), idle=True,
                         complete=parent is not None)  # fmt: skip
        gone = tuple(n for n in self._children_of(node.process) if self.nodes[n].has_vanished)
        if gone and not node.inner and isinstance(doing, _FOR_A_HELPER):
            return Waits(needs=gone)
        match doing:
            case x.End():
                if self.first_ends and at not in self.first_ends and has_failed_end(doing):
                    return Waits(needs=self.first_ends)
                fact = node.process.ended
                through = fact is not None and has_failed(fact.end) is False and not fact.end.code
                return Waits(halted=True, idle=through and doing.signal is not None)
            case w.Stopped() | w.Ended():
                return Waits(halted=True)
            case x.CollectiveWait() | x.StoreWait():
                return self._waits_for_ranks(at)
            case x.BatchWait():
                workers = self._workers(node)
                needs = tuple(n for n in workers if not self.nodes[n].idle)
                seen = bool(workers) and not any(self._is_blind(n) for n in workers)
                idle = tuple(n for n in workers if self.nodes[n].idle)
                return Waits(needs=needs, any_of=() if needs else idle, complete=seen)
            case x.GilWait():
                return Waits(needs=self._thread(at, doing.owner_tid), complete=False)
            case w.MutexWait(owner_tid=int(tid)) if doing.owner_lives is not False:
                owner = self._thread(at, tid)
                return Waits(needs=owner, complete=bool(owner))
            case w.MutexWait():
                return self._inside(at, sealed=doing.owner_lives is False)
            case x.LoopWait():
                return Waits()
            case x.JoinWait() | x.PythonLockWait() | x.QueueWait() | x.ImportWait():
                return self._inside(at)
            case w.ChildWait():
                return self._children(at, doing)
            case w.PipeWait() | w.TcpWait() | w.FileWait() | w.SharedSemaphoreWait():
                return self._others(at, doing.others, doing.complete, timed)
            case w.FileLockWait():
                return self._others(at, doing.holders, doing.complete, timed)
            case w.PollWait():
                return self._poll(at, doing)
            case w.UnknownWait():
                return Waits(complete=False)
            case w.DeviceWait() if self._is_rank(node) and self._elsewhere(at):
                return Waits(needs=self._elsewhere(at))
        return Waits(free=True)

    def _elsewhere(self, at: int) -> tuple[int, ...]:
        """Ranks that a GPU kernel of this one may wait for: not in it, by records or frames."""
        behind = self._behind(at)
        if behind is not None:
            return (behind,)
        return tuple(n for n in self._away if n != at and self._is_plain(n))

    def _is_plain(self, at: int) -> bool:
        """Whether it surely waits for no device: without native frames such a call seems busy."""
        doing, how = self.nodes[at].doing, self.nodes[at].process.how
        busy = isinstance(doing, (x.Computing, w.Running, w.UnknownWait))
        return how == "py-spy native" or not busy

    def _waits_for_ranks(self, at: int) -> Waits:
        away = tuple(n for n in self._away if n != at)
        if away:
            return Waits(needs=away)
        other = tuple(self._in_others(at))
        if other:
            return Waits(needs=other, complete=self._everybody)
        behind = self._behind(at)
        if behind is not None:
            return Waits(needs=(behind,))
        # All observed ranks wait for each other; the missing rank, or the transport, is unknown.
        return Waits(complete=False)

    def _behind(self, at: int) -> int | None:
        """The rank that has begun fewer collectives than the others, by their records."""
        records = self.recorded
        if records is None or records.culprit is None or records.relation == "same":
            return None
        found = next((n for n in self.ranks if self._rank(n) == records.culprit), None)
        return found if found != at else None

    def _workers(self, node: _Node) -> list[int]:
        process = node.process
        return [
            n
            for n, other in enumerate(self.nodes)
            if other.process.role == "worker"
            and not other.inner
            and other.process.part == process.part
            and (
                other.process.ppid == process.pid
                or (
                    other.process.rank == process.rank
                    and (process.part, other.process.ppid) not in self._by_pid
                )
            )
        ]

    def _thread(self, at: int, tid: int | None) -> tuple[int, ...]:
        nodes = ((n, other) for n, other in enumerate(self.nodes) if n != at and tid is not None)
        process = self.nodes[at].process
        return tuple(
            n
            for n, other in nodes
            if other.process is process and other.thread and other.thread.os_id == tid
        )[:1]

    def _inside(self, at: int, *, sealed: bool = False) -> Waits:
        """A lock, queue or join: other threads could end it, or children if they are heard."""
        node = self.nodes[at]
        if sealed or node.process.sealed:
            return Waits()
        inner = [n for n in self._inner.get(at, ()) if n != at]
        children = [
            n
            for n in self._children_of(node.process)
            if not self.nodes[n].idle
            and (isinstance(node.doing, x.QueueWait) or of_thread.hears_children(node.process))
        ]
        outside = isinstance(node.doing, x.PythonLockWait) and node.doing.from_outside
        if children and not inner and not outside:
            return Waits(needs=tuple(children))
        able = (*inner, *children)
        # Several, or none that was seen: what ends the wait is unknown, so it is incomplete.
        return Waits(any_of=able, complete=len(able) == 1 and not outside)

    def _children_of(self, process: ProcessEvidence) -> list[int]:
        return [
            n
            for n, other in enumerate(self.nodes)
            if not other.inner
            and other.process.ppid == process.pid
            and other.process.part == process.part
        ]

    def _children(self, at: int, doing: w.ChildWait) -> Waits:
        if doing.children:
            return self._others(at, doing.children, True, doing.timed)
        found = [n for n in self._children_of(self.nodes[at].process) if not self.nodes[n].idle]
        return Waits(any_of=tuple(found), complete=len(found) == 1, timed=doing.timed)

    def _others(self, at: int, refs: w.Refs, complete: bool, timed: bool) -> Waits:
        """A wait for processes; one outside the training ends the chain."""
        part = self.nodes[at].process.part
        found = [self._by_pid.get((part, ref.pid)) for ref in refs]
        if not found or any(n is None for n in found):
            return Waits(free=True)
        able = tuple(n for n in found if n is not None and n != at)
        return Waits(any_of=able, complete=complete, timed=timed)

    def _poll(self, at: int, doing: w.PollWait) -> Waits:
        inner: list[w.ProcessRef] = []
        complete = bool(doing.waits)
        for wait in doing.waits:
            refs: w.Refs = getattr(wait, "others", ()) or getattr(wait, "holders", ())
            inner += refs
            complete = complete and bool(refs) and getattr(wait, "complete", True)
        if not inner:
            return Waits(complete=False)
        return self._others(at, tuple(inner), complete, doing.left_s is not None)

    def owns(self, at: int, inner: int) -> bool:
        """Whether `inner` is another thread of the process of `at`."""
        return inner in self._inner.get(at, ())


def _trains_with_others(evidence: Evidence) -> bool:
    """Whether there may be a process group: by the world's size, other ranks, or a frame."""
    if evidence.world_size is not None and evidence.world_size > 1:
        return True
    ranks = [process for process in evidence.processes if process.role == "rank"]
    if len({-p.pid if p.rank is None else p.rank for p in ranks}) > 1:
        return True
    frames = (f for process in ranks for thread in process.threads for f in thread.frames)
    waits = f"{frame_sets.COLLECTIVE} || {frame_sets.WAITS_FOR_RANKS} || {frame_sets.RENDEZVOUS}"
    return any(of_thread.of_reducer(frame) or frame_matches(waits, frame) for frame in frames)


def _dismantles(process: ProcessEvidence) -> bool:
    """It destroys its process group, which waits for all ranks unless they wait for it."""
    frames = process.main.frames if process.main is not None else ()
    return any_matches(frame_sets.DISMANTLES_GROUP, frames)


def plain_operation(name: str) -> str:
    """`all_gather` for `_all_gather_base`, `all_gather_into_tensor` and NCCL's `allgather`."""
    text = _LIBRARY.sub("", name.rpartition("::")[2].lower()).replace("_", "")
    if text.startswith(_OF_SCRIPTS):
        return "allreduce"
    if "send" in text or "recv" in text:
        return "send or receive"  # one rank sends what another receives: that is no difference
    for suffix in ("intotensor", "tensor", "base", "coalesced", "object", "objectlist", "opts"):
        text = text.removesuffix(suffix)
    return text


def has_failed_end(end: x.End) -> bool:
    """Whether an end was a failure; an end without code, signal or exception was not."""
    return bool(end.code) or end.signal is not None or end.raised is not None
