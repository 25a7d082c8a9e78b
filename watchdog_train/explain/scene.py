"""Evidence as families see it: processes with their relatives, the job, the machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import msgspec

from watchdog_train.core.diagnosis.collectives import SINGLE, not_come
from watchdog_train.core.diagnosis.facts import (
    BUSY_CPU_SHARE,
    FLAT_CPU_SHARE,
    FULL_SHM_SHARE,
    Evidence,
    LogText,
    ProcessEvidence,
)
from watchdog_train.core.diagnosis.first_failure import first_failure
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.log_lines import LINE_CAP
from watchdog_train.core.diagnosis.log_search import Hit, LogIndex
from watchdog_train.core.diagnosis.stacks import (
    ThreadStack,
    deciding_frame,
    find_chain,
    frame_matches,
    own_frames,
)
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import signal_name
from watchdog_train.core.model import waits as w
from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain import waits as of_thread
from watchdog_train.explain.chains import Chains, who
from watchdog_train.explain.messages import Message
from watchdog_train.explain.ranks import standings

_KERNEL_FRAMES_CAP = 64
_NATIVE_DEPTH = 3
"""Native frames lie closer together than Python's: so many of them count as one."""
_COMPILERS = frozenset({"ninja", "nvcc", "cc1plus", "cicc", "ptxas", "hipcc"})
_FAR = 1 << 30
_SWAP, _SWAP_BYTES_S, _MEMORY, _LOAD = 0.9, 20e6, 0.09, 3.0
_ON, _OFF = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


class Stack:
    """The stack of one thread; patterns are those of `stacks.frame_matches`."""

    def __init__(self, thread: ThreadStack | None) -> None:
        self.thread = thread
        self.frames = own_frames(thread.frames) if thread is not None else ()

    def passes(self, *chain: str) -> bool:
        """Whether its frames go through these, outermost first, gaps allowed."""
        return bool(self.frames) and find_chain(chain, self.frames)

    def inner(self, pattern: str, depth: int = 4) -> bool:
        """Whether one of the innermost frames fits: so many of Python, and the native ones."""
        python = [frame for frame in self.frames if not frame.native][:depth]
        native = [frame for frame in self.frames[: depth * _NATIVE_DEPTH] if frame.native]
        return any(frame_matches(pattern, frame) for frame in (*native, *python))

    def avoids(self, *patterns: str) -> bool:
        """Whether it has frames, and none of these."""
        return bool(self.frames) and not any(self.passes(pattern) for pattern in patterns)

    def calls(self, pattern: str) -> bool:
        """Whether the text of its deciding line has this regular expression."""
        frame = deciding_frame(self.frames)
        source = frame.source if frame is not None else None
        return source is not None and re.search(pattern, source[:LINE_CAP]) is not None


class Captured:
    """One process of the evidence, with what it does and who its relatives are."""

    def __init__(self, scene: Scene, process: ProcessEvidence) -> None:
        self._scene = scene
        self.process = process
        self.role, self.rank, self.who = process.role, process.rank, process.who
        self.sealed = bool(process.sealed)
        self.stack = Stack(of_thread.deciding_thread(process))
        self.stacks = tuple(map(Stack, process.threads))
        cpu, main = process.cpu_share, process.main
        active = main.active if main is not None else None
        self.running, self.resting = active is True, active is False
        """Whether its main thread ran when it was sampled; neither where that is not known."""
        self.busy = cpu is not None and cpu >= BUSY_CPU_SHARE
        self.flat = cpu is not None and cpu < FLAT_CPU_SHARE
        self.changed = bool(process.changed) and process.asks is None  # asking is no work
        self.is_steady = process.changed is False
        self.is_runnable = process.state == "R"
        self.is_uninterruptible = process.state == "D"
        self.has_ended = process.state in ("Z", "X")
        self.is_captured = process.how is not None
        self.trains = self.role in ("rank", "other")
        self.helps = self.role in ("worker", "other")
        self.is_compiler = any(
            name.rpartition("/")[2] in _COMPILERS for name in process.command[:1]
        )

    @cached_property
    def working(self) -> tuple[Stack, ...]:
        """Of its threads that do not idle as in every healthy run."""
        return tuple(
            one for one in self.stacks if one.thread is not None and not is_idle_helper(one.thread)
        )

    def any_passes(self, *chain: str) -> bool:
        """Whether a working thread goes through these frames."""
        return any(stack.passes(*chain) for stack in self.working)

    @cached_property
    def doing(self) -> x.Doing:
        """What its deciding thread waits for, or that it works."""
        node = self._scene.node_of(self.process)
        return (
            node
            if node is not None
            else of_thread.doing(self.process, self.stack.thread, several=self._scene.graph.several)
        )

    @property
    def doing_what(self) -> str:
        """The name of that: `sleep`, `python_lock`, `terminal`."""
        return str(self.doing.__struct_config__.tag)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for orders, as in every healthy run."""
        return bool(self.process.threads) and of_thread.is_idle(self.process)

    @property
    def is_victim(self) -> bool:
        """Whether it only waits for the root."""
        return who(self.process) in self._scene.victims

    @property
    def is_apart(self) -> bool:
        """Whether it is a rank in no collective while others wait in one."""
        return self.process.identity in self._scene.odd

    @property
    def forked(self) -> bool:
        """Whether it was started by a fork without an exec."""
        told = self.process.forked
        if told is not None:
            return told
        command, parent = self.process.command, self.parent
        return bool(command) and parent is not None and parent.process.command == command

    @property
    def spawned(self) -> bool:
        """Whether its stack tells that it was not forked."""
        return self.process.forked is False

    @property
    def is_cut_off(self) -> bool:
        """Whether nobody is left in it who could wake it: what held the lock was not forked."""
        doing = self.doing
        return self.sealed or (isinstance(doing, w.MutexWait) and doing.owner_lives is False)

    @property
    def holds_gil(self) -> bool:
        """Whether its deciding thread holds the interpreter lock."""
        return self.stack.thread is not None and self.stack.thread.owns_gil

    @property
    def parallel_tokenizers(self) -> bool | None:
        """What TOKENIZERS_PARALLELISM says; None: nothing."""
        value = self.process.environment.get("TOKENIZERS_PARALLELISM", "").lower()
        return True if value in _ON else False if value in _OFF else None

    @property
    def parent(self) -> Captured | None:
        """Its parent, where that was seen."""
        return next((one for one in self._here() if one.process.pid == self.process.ppid), None)

    @property
    def children(self) -> tuple[Captured, ...]:
        """Its children that were seen."""
        return tuple(one for one in self._here() if one.process.ppid == self.process.pid)

    @property
    def others(self) -> tuple[Captured, ...]:
        """Everybody else."""
        return tuple(one for one in self._scene.captured if one is not self)

    def _here(self) -> Iterator[Captured]:
        """On its machine, where pids mean the same."""
        part = self.process.part
        return (one for one in self._scene.captured if one.process.part == part)

    def in_kernel(self, pattern: str) -> bool:
        """Whether its place in the kernel, or a frame there, has this regular expression."""
        places = (self.process.wchan or "", *self.process.kernel[:_KERNEL_FRAMES_CAP])
        return any(re.search(pattern, place) for place in places)


class Scene:
    """The evidence, its graph, and what many families ask of them worked out once."""

    def __init__(self, graph: Chains, observed: x.Explanation) -> None:
        self.graph = graph
        self.observed = observed
        self.evidence: Evidence = graph.evidence
        self.why = self.evidence.why
        self.host = self.evidence.host
        self.logs = LogIndex(without_quotes(self.evidence))
        self.standing, self.odd = standings(self.evidence.processes, several=graph.several)
        self.records = graph.records
        self.recorded = graph.recorded
        self.relation = self.recorded.relation if self.recorded is not None else None
        self.captured = tuple(Captured(self, process) for process in self.evidence.processes)
        self.ranks = tuple(one for one in self.captured if one.role == "rank")
        self.workers = tuple(one for one in self.captured if one.role == "worker")
        self._doing = {node.process.identity: node.doing for node in graph.nodes if not node.inner}

    def node_of(self, process: ProcessEvidence) -> x.Doing | None:
        """What the graph has found that a process does."""
        return self._doing.get(process.identity)

    @cached_property
    def victims(self) -> frozenset[x.Who]:
        """Who only waits for the root."""
        found = self.observed
        blamed = {found.root.who} if found.root is not None else set()
        blamed |= {*found.alike, *(one.who for one in found.knot)}
        return frozenset(victim.who for victim in found.victims) - blamed

    @property
    def any_changed(self) -> bool:
        """Whether a stack changed between two samples."""
        return any(one.changed for one in self.captured)

    def builds_extension(self, waiting: Captured) -> bool:
        """Whether a compiler runs, or another process builds what this one waits for."""
        builds = any(one.any_passes(sets.BUILDS_EXTENSION) for one in waiting.others)
        return builds or any(one.is_compiler for one in self.captured)

    @cached_property
    def steps_go_on(self) -> bool:
        """Whether the output shows steps to its end, in a dump on request."""
        return self.why == "manual" and self.logs.moves()

    @cached_property
    def records_agree(self) -> bool:
        """Whether the records blame the very rank that stands apart by its stack."""
        odd = {one.rank for one in self.captured if one.is_apart}
        return self.recorded is not None and {self.recorded.culprit} == odd

    @property
    def first_number(self) -> int:
        """The lowest number of a collective that the ranks recorded."""
        return min((fact.seq for fact in self.records if fact.seq is not None), default=_FAR)

    @property
    def records_are_tiny(self) -> bool:
        """Whether only single elements were exchanged: barriers, or numbers to agree on."""
        return bool(self.records) and all(fact.size in SINGLE for fact in self.records)

    @cached_property
    def not_come(self) -> tuple[int, ...]:
        """Ranks that the waiting ones miss, by what these have printed."""
        return not_come(self.logs.lines())

    @property
    def shares_group(self) -> bool:
        """Whether several threads of a rank use one process group."""
        return any(map(self.graph.shares_group, self.graph.ranks))

    @cached_property
    def signals(self) -> frozenset[str]:
        """Names of those that ended the training, or the rank that failed first."""
        failure = first_failure(self.evidence.processes, self.evidence.logs)
        found = set(failure.signals) if failure is not None else set()
        end = self.evidence.exit
        if end is not None:
            code = end.code or 0
            # A shell or launcher turns a signal into 128+N, Python's own launchers into -N.
            found.add(end.signal or (code - 128 if code > 128 else -code))
        return frozenset(signal_name(number) for number in found if number > 0)

    @property
    def oom_killed(self) -> bool | None:
        """Whether the memory killer came in this attempt; None: nobody has counted."""
        return bool(self.host.oom_kills) if self.host.oom_since_start else None

    @property
    def shm_is_full(self) -> bool | None:
        """Whether shared memory has no room for a batch."""
        share = self.host.shm_used_share
        return None if share is None else share > FULL_SHM_SHARE

    @property
    def swaps(self) -> bool:
        """Whether the machine lives on its swap."""
        host = self.host
        return (host.swap_used_share or 0) > _SWAP or (host.swap_bytes_s or 0) > _SWAP_BYTES_S

    @property
    def is_short_of_memory(self) -> bool:
        """Whether hardly any memory is available."""
        return (self.host.memory_available_share or 1) < _MEMORY

    @property
    def is_overloaded(self) -> bool:
        """Whether far more threads want to run than there are cores."""
        return (self.host.load_per_core or 0) > _LOAD

    @property
    def lock_owner_is_dead(self) -> bool:
        """Whether a lock file names a process that is gone."""
        return any(lock.owner_alive is False for lock in self.evidence.locks)

    def hit(self, row: Message) -> Hit | None:
        """The line of output that has this error message, as the first failure in time."""
        if row.unless == "oom-not-counted" and self.oom_killed is False:
            return None
        if row.unless == "shm-free" and self.why != "crash" and self.shm_is_full is False:
            return None
        if row.place == "stays":
            return self.logs.stays(row.pattern)
        if row.place == "end":
            return self.logs.at_end(row.pattern)
        return self.logs.first(row.pattern, crashed=self.why == "crash")


def without_quotes(evidence: Evidence) -> tuple[LogText, ...]:
    """The logs without what an exception quotes of another program, and its `raise` itself.

    A line that a log has twice was printed by that program itself, too.
    """
    raised = [p.exception for p in evidence.processes if p.exception is not None]
    quoted = {line.strip() for one in raised for line in one.quoted.splitlines()[1:]}
    calls = (place.source for one in raised for place in one.frames)
    sources = tuple(call for call in calls if call.startswith("raise "))
    if not quoted and not sources:
        return evidence.logs

    def said(log: LogText) -> LogText:
        times = Counter(line.strip() for line in log.lines)
        lines = (
            line
            for line in log.lines
            if not (line.strip() in quoted and times[line.strip()] == 1)
            and not line.strip().startswith(sources)
        )
        return msgspec.structs.replace(log, lines=tuple(lines))

    return tuple(map(said, evidence.logs))
