"""Evidence as families see it: processes with their relatives, the job, the machine."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

import msgspec

from watchdog_train.core.diagnosis.collectives import not_come
from watchdog_train.core.diagnosis.facts import (
    BUSY_CPU_SHARE,
    FLAT_CPU_SHARE,
    FULL_SHM_SHARE,
    Evidence,
    LogText,
    ProcessEvidence,
)
from watchdog_train.core.diagnosis.first_failure import first_failures
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.log_search import Hit, LogIndex
from watchdog_train.core.diagnosis.stacks import (
    ThreadStack,
    any_matches,
    find_chain,
    own_frames,
)
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import signal_in_code, signal_name
from watchdog_train.core.model import waits as w
from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain import waits as of_thread
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.messages import Message

_KERNEL_FRAMES_CAP = 64
_NATIVE_DEPTH = 3
"""Native frames are closer together than Python's: this many count as one."""
_COMPILERS = frozenset({"ninja", "nvcc", "cc1plus", "cicc", "ptxas", "hipcc"})
_FAR = 1 << 30
_SWAP, _SWAP_BYTES_S, _MEMORY = 0.9, 20e6, 0.09
_ON, _OFF = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


class Stack:
    """The stack of one thread; patterns are those of `stacks.frame_matches`."""

    def __init__(self, thread: ThreadStack | None) -> None:
        self.thread = thread
        self.frames = own_frames(thread.frames) if thread is not None else ()
        self._passed: dict[tuple[str, ...], bool] = {}

    def passes(self, *chain: str) -> bool:
        """Whether its frames go through these, outermost first, gaps allowed."""
        if chain not in self._passed:  # every suspect may be asked about every other process
            self._passed[chain] = bool(self.frames) and find_chain(chain, self.frames)
        return self._passed[chain]

    def inner(self, pattern: str, depth: int = 4) -> bool:
        """Whether one of the innermost frames fits: this many of Python, and the native ones."""
        python = [frame for frame in self.frames if not frame.native][:depth]
        native = [frame for frame in self.frames[: depth * _NATIVE_DEPTH] if frame.native]
        return any_matches(pattern, (*native, *python))

    def avoids(self, *patterns: str) -> bool:
        """Whether it has frames, and none of these."""
        return bool(self.frames) and not any(self.passes(pattern) for pattern in patterns)


class Captured:
    """One process of the evidence, with what it does and its relatives.

    `doing` is what its deciding thread waits for, `doing_what` the name of that: `sleep`, `batch`.
    `running` and `resting`: its main thread ran or waited when it was sampled; neither if that
    is unknown. `trains`: a rank or another process; `helps`: a worker or another process.
    `is_cut_off`: no thread is left in it that could wake it. `is_apart`: a rank in no collective
    while others wait in one. `forked`: without an exec, known or likely by its command;
    `spawned`: known not to be.
    """

    def __init__(self, scene: Scene, process: ProcessEvidence, doing: x.Doing) -> None:
        self._scene, self.process, self.doing = scene, process, doing
        self.role, self.rank, self.who = process.role, process.rank, process.who
        self.doing_what = str(doing.__struct_config__.tag)
        self.stack = Stack(of_thread.deciding_thread(process))
        self.stacks = tuple(map(Stack, process.threads))
        cpu, main = process.cpu_share, process.main
        active = main.active if main is not None else None
        self.running, self.resting = active is True, active is False
        self.busy = cpu is not None and cpu >= BUSY_CPU_SHARE
        self.flat = cpu is not None and cpu < FLAT_CPU_SHARE
        self.changed = bool(process.changed) and process.asks is None  # asking is no work
        self.is_steady = process.changed is False
        self.is_runnable, self.is_uninterruptible = process.state == "R", process.state == "D"
        self.has_ended = process.state in ("Z", "X")
        self.is_captured = process.how is not None
        self.trains, self.helps = self.role in ("rank", "other"), self.role in ("worker", "other")
        self.is_compiler = any(
            name.rpartition("/")[2] in _COMPILERS for name in process.command[:1]
        )
        lock_left = isinstance(doing, w.MutexWait) and doing.owner_lives is False
        self.sealed = bool(process.sealed)
        self.is_cut_off = self.sealed or lock_left
        self.holds_gil = self.stack.thread is not None and self.stack.thread.owns_gil
        self.is_victim = process.who in scene.victims
        self.is_apart = process.identity in scene.odd
        self.spawned = process.forked is False

    @cached_property
    def working(self) -> tuple[Stack, ...]:
        """Its threads that do not idle as in every healthy run."""
        return tuple(
            one for one in self.stacks if one.thread is not None and not is_idle_helper(one.thread)
        )

    def any_passes(self, *chain: str) -> bool:
        return any(stack.passes(*chain) for stack in self.working)

    @cached_property
    def is_idle(self) -> bool:
        """Whether it waits for orders, as in every healthy run."""
        return bool(self.process.threads) and of_thread.is_idle(self.process)

    @property
    def forked(self) -> bool:
        told = self.process.forked
        command, parent = self.process.command, self.parent
        copies = bool(command) and parent is not None and parent.process.command == command
        return copies if told is None else told

    @property
    def parallel_tokenizers(self) -> bool | None:
        """The value of TOKENIZERS_PARALLELISM; None: not set."""
        value = self.process.environment.get("TOKENIZERS_PARALLELISM", "").lower()
        return True if value in _ON else False if value in _OFF else None

    @property
    def parent(self) -> Captured | None:
        return self._scene.by_identity.get((self.process.part, self.process.ppid))

    @property
    def children(self) -> tuple[Captured, ...]:
        return tuple(one for one in self._scene.captured if one.parent is self)

    @property
    def others(self) -> tuple[Captured, ...]:
        return tuple(one for one in self._scene.captured if one is not self)

    def in_kernel(self, pattern: str) -> bool:
        """Whether its place in the kernel, or a frame there, matches this regular expression."""
        places = (self.process.wchan or "", *self.process.kernel[:_KERNEL_FRAMES_CAP])
        return any(re.search(pattern, place) for place in places)


class Scene:
    """The evidence, its graph, and results that many families share.

    `standing` compares the ranks, `relation` their records of collectives.
    """

    def __init__(self, graph: Chains, observed: x.Explanation) -> None:
        self.observed = observed
        self.evidence: Evidence = graph.evidence
        self.why, self.host = self.evidence.why, self.evidence.host
        self.logs = LogIndex(without_quotes(self.evidence))
        self.standing, self.odd = graph.standing()
        self.records, self.recorded = graph.records, graph.recorded
        self.relation = self.recorded.relation if self.recorded is not None else None
        self.culprit = self.recorded.culprit if self.recorded is not None else None
        blamed = {observed.root.who} if observed.root is not None else set()
        blamed |= {*observed.alike, *(one.who for one in observed.knot)}
        self.victims = frozenset(victim.who for victim in observed.victims) - blamed
        doing = {node.process.identity: node.doing for node in graph.nodes if not node.inner}
        self.captured = tuple(
            Captured(self, process, doing[process.identity])
            for process in self.evidence.processes
            if process.identity in doing
        )
        self.by_identity = {one.process.identity: one for one in self.captured}
        self.ranks = tuple(one for one in self.captured if one.role == "rank")
        self.workers = tuple(one for one in self.captured if one.role == "worker")
        self.any_changed = any(one.changed for one in self.captured)
        self.steps_go_on = self.why == "manual" and self.logs.moves()
        self.records_agree = {self.culprit} == {one.rank for one in self.captured if one.is_apart}
        self.first_number = min((f.seq for f in self.records if f.seq is not None), default=_FAR)
        self.shares_group = any(map(graph.shares_group, graph.ranks))
        self.not_come = not_come(self.logs.lines())
        host, shm = self.host, self.host.shm_used_share
        self.oom_killed = bool(host.oom_kills) if host.oom_since_start else None
        self.shm_is_full = None if shm is None else shm > FULL_SHM_SHARE
        self.swaps = (host.swap_used_share or 0) > _SWAP or (host.swap_bytes_s or 0) > _SWAP_BYTES_S
        self.is_short_of_memory = (host.memory_available_share or 1) < _MEMORY
        self.lock_owner_is_dead = any(lock.owner_alive is False for lock in self.evidence.locks)

    def builds_extension(self, waiting: Captured) -> bool:
        """Whether a compiler runs, or another process builds what this one waits for."""
        builds = any(one.any_passes(sets.BUILDS_EXTENSION) for one in waiting.others)
        return builds or any(one.is_compiler for one in self.captured)

    @cached_property
    def signals(self) -> frozenset[str]:
        """Names of those that ended the training, or the rank that failed first."""
        failures = first_failures(self.evidence.processes, self.evidence.logs)
        found = {end.signal for _, end in failures if end.signal is not None}
        end = self.evidence.exit
        if end is not None:
            found.add(end.signal or signal_in_code(end.code or 0))
        return frozenset(signal_name(number) for number in found if number > 0)

    def hit(self, row: Message) -> Hit | None:
        """The line of output with this error message, as the first failure in time."""
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
    """The logs without an exception's quotes of another program, and without its own `raise`.

    A line that is in a log twice was printed by that program itself, too.
    """
    told = (*evidence.exceptions, *(p.exception for p in evidence.processes))
    raised = [one for one in told if one is not None]
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
