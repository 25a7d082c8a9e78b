"""Does a sign of a family fit the graph, and who is meant? Pure; judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
from watchdog_train.core.diagnosis.log_search import Hit, LogIndex, before, compiled
from watchdog_train.core.diagnosis.ranks import standings
from watchdog_train.core.diagnosis.stacks import (
    Frame,
    ThreadStack,
    deciding_frame,
    find_chain,
    frame_matches,
    own_frames,
)
from watchdog_train.core.model import Value, signal_name
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.explain import waits as of_thread
from watchdog_train.explain.chains import Chains, who
from watchdog_train.explain.families import Clause, Sign

_FAR = 1 << 30
_KERNEL_FRAMES_CAP = 64
_NATIVE_DEPTH = 3
"""Native frames lie closer together than Python's: so many of them count as one."""
_COMPILERS = frozenset({"ninja", "nvcc", "cc1plus", "cicc", "ptxas", "hipcc"})
_STEPS = 2
_FIRST, _EARLY = 4, 20
_SWAP, _SWAP_BYTES_S, _MEMORY, _LOAD = 0.9, 20e6, 0.09, 3.0


class Bound(Value):
    """A process that fits a clause, with the thread that did."""

    process: ProcessEvidence
    thread: ThreadStack | None


class Match(Value):
    """A sign that fits."""

    sign: Sign
    bound: Bound | None
    """Whom its `root` or `waiter` means."""
    hit: Hit | None
    """The log line that it was recognised by."""


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


class Scene:
    """One piece of evidence and its graph, with what many signs ask of them worked out once."""

    def __init__(self, graph: Chains, observed: x.Explanation) -> None:
        self.graph = graph
        self.observed = observed
        self.evidence: Evidence = graph.evidence
        self.logs = LogIndex(without_quotes(self.evidence))
        self.standing, self.odd = standings(self.evidence.processes, graph.sets)
        self.records = graph.records
        self.recorded = graph.recorded
        self._doing = {(n.process.identity, id(n.thread)): n.doing for n in graph.nodes}
        self._facts: dict[tuple[tuple[int, int], int], frozenset[str]] = {}

    @cached_property
    def not_come(self) -> tuple[int, ...]:
        """Ranks that the waiting ones miss, by what these have printed."""
        return not_come(self.logs.lines())

    @cached_property
    def words(self) -> frozenset[str]:
        """What is true of the job and the machine."""
        evidence, host, recorded = self.evidence, self.evidence.host, self.recorded
        killed = bool(host.oom_kills) and host.oom_since_start
        odd = {p.rank for p in evidence.processes if p.identity in self.odd}
        numbers = [fact.seq for fact in self.records if fact.seq is not None]
        found = {
            "stacks": any(process.threads for process in evidence.processes),
            "moving": self.logs.moves(),
            "counts_steps": self.logs.steps() > _STEPS,
            "records-agree": bool(recorded and {recorded.culprit} == odd),
            "first-collectives": min(numbers, default=_FAR) < _FIRST,
            "early-collectives": min(numbers, default=_FAR) < _EARLY,
            "tiny": bool(self.records) and all(fact.size in SINGLE for fact in self.records),
            "rank0-recorded": any(fact.rank == 0 for fact in self.records),
            "steps-differ": len(set(self.logs.last_steps().values())) > 1,
            "oom-counted": killed,
            "oom-possible": killed or not (host.oom_since_start and host.oom_kills == 0),
            "shm-full": (host.shm_used_share or 0) > FULL_SHM_SHARE,
            "shm-free": host.shm_used_share is not None and host.shm_used_share <= FULL_SHM_SHARE,
            "swaps": (host.swap_used_share or 0) > _SWAP
            or (host.swap_bytes_s or 0) > _SWAP_BYTES_S,
            "memory-short": (host.memory_available_share or 1) < _MEMORY,
            "overloaded": (host.load_per_core or 0) > _LOAD,
            "gpu-shared": bool(host.gpu_others),
            "threads-share-group": any(map(self.graph.shares_group, self.graph.ranks)),
            "lock-owner-dead": any(lock.owner_alive is False for lock in evidence.locks),
        }
        words = {word for word, true in found.items() if true} | set(self._signals())
        words |= {evidence.why, self.standing}
        return frozenset(words | ({f"recorded-{recorded.relation}"} if recorded else set()))

    def _signals(self) -> Iterator[str]:
        """That ended the training, or the rank that failed first."""
        failure = first_failure(self.evidence.processes, self.evidence.logs)
        found = set(failure.signals) if failure is not None else set()
        end = self.evidence.exit
        if end is not None:
            code = end.code or 0
            # A shell or launcher turns a signal into 128+N, Python's own launchers into -N.
            found.add(end.signal or (code - 128 if code > 128 else -code))
        return (signal_name(number) for number in found if number > 0)

    def match(self, sign: Sign, *, hangs: bool) -> Match | None:
        """The first way in which a sign fits; `hangs`: it says that somebody stands still."""
        if not fits(sign.when, self.words) or self._excluded(sign):
            return None
        hit = self._hit(sign)
        if sign.log and hit is None:
            return None
        if sign.raised and not any(_frames_fit(sign.raised, one) for one in self._tracebacks):
            return None
        first = sign.root or sign.waiter
        if first is None:
            fits_all = all(self._has(clause, None) for clause in sign.others)
            return Match(sign=sign, bound=None, hit=hit) if fits_all else None
        for bound in self._fitting(first, self.evidence.processes):
            if sign.root is not None and who(bound.process) in self.victims:
                continue
            if hangs and self.facts(bound.process, bound.thread) & {"busy", "changed"}:
                continue
            if all(self._has(clause, bound) for clause in sign.others):
                return Match(sign=sign, bound=bound, hit=hit)
        return None

    @cached_property
    def _tracebacks(self) -> tuple[ThreadStack, ...]:
        """Of exceptions that nobody caught."""
        return tuple(
            ThreadStack(
                frames=tuple(
                    Frame(function=place.function, file=place.file, line=place.line)
                    for place in reversed(fact.frames)
                )
            )
            for fact in self.evidence.exceptions
        )

    @cached_property
    def victims(self) -> frozenset[x.Who]:
        """Who only waits for the root."""
        found = self.observed
        blamed = {found.root.who} if found.root is not None else set()
        blamed |= {*found.alike, *(one.who for one in found.knot)}
        return frozenset(victim.who for victim in found.victims) - blamed

    def _excluded(self, sign: Sign) -> bool:
        logs = self.logs
        return bool(sign.also and not logs.any(sign.also)) or bool(
            sign.unless and logs.any(sign.unless)
        )

    def _hit(self, sign: Sign) -> Hit | None:
        """The line that names the cause: first in time, with what must follow it behind it."""
        at, hits = sign.at, self.logs.hits(sign.log)
        if not sign.log:
            return None
        if at == "stays":
            return self.logs.stays(sign.log)
        if at == "end":
            return self.logs.at_end(sign.log)
        if at == "passed":
            found = list(hits)
            return found[0] if found and all(hit.progress_after for hit in found) else None
        if at == "early":
            hit = next(hits, None)
        else:
            hit = self.logs.first(sign.log, crashed=self.evidence.why == "crash")
        if hit is None or not sign.then:
            return hit
        later = any(before(hit, other) is not False for other in self.logs.hits(sign.then))
        return hit if later else None

    def _has(self, clause: Clause, root: Bound | None) -> bool:
        related = [p for p in self.evidence.processes if _related(clause.who, p, root)]
        taken = root.thread if root is not None and clause.who == "same" else None
        return (next(self._fitting(clause, related, taken), None) is None) == clause.absent

    def _fitting(
        self,
        clause: Clause,
        processes: Sequence[ProcessEvidence],
        taken: ThreadStack | None = None,
    ) -> Iterator[Bound]:
        """Processes that fit, each with the first thread that does and is not taken already."""
        asks = bool(clause.frames or clause.top or clause.without or clause.source)
        asks = asks or clause.thread == "any"
        for process in processes:
            if clause.kernel is not None and not _kernel_fits(clause.kernel, process):
                continue
            deciding = of_thread.deciding_thread(process)
            for thread in (deciding,) if clause.thread == "deciding" else process.threads:
                if thread is not None and thread is taken:
                    continue
                if not fits(clause.facts, self.facts(process, thread)):
                    continue
                if not asks or (thread is not None and _frames_fit(clause, thread)):
                    yield Bound(process=process, thread=thread)
                    break

    def facts(self, process: ProcessEvidence, thread: ThreadStack | None) -> frozenset[str]:
        """What it is and does, as words."""
        key = (process.identity, id(thread))
        if key not in self._facts:
            self._facts[key] = frozenset(self._words_of(process, thread))
        return self._facts[key]

    def _words_of(self, process: ProcessEvidence, thread: ThreadStack | None) -> Iterator[str]:
        doing = self._doing.get((process.identity, id(thread)))
        if doing is None:
            doing = of_thread.doing(process, thread, self.graph.sets)
        yield str(doing.__struct_config__.tag)
        yield process.role
        main, cpu = process.main, process.cpu_share
        active = main.active if main is not None else None
        tokenizers = process.environment.get("TOKENIZERS_PARALLELISM", "").lower()
        known = {
            "rank0": process.role == "rank" and process.rank == 0,
            "sealed": process.sealed,
            "held_at_fork": isinstance(doing, w.MutexWait) and doing.owner_lives is False,
            "network_file": bool(getattr(doing, "network", None)),
            "forked": process.forked or (process.forked is None and self._copies_parent(process)),
            "spawned": process.forked is False,
            "idle": bool(process.threads) and of_thread.is_idle(process),
            "changed": process.changed and process.asks is None,  # a loop that asks is no work
            "steady": process.changed is False,
            "busy": cpu is not None and cpu >= BUSY_CPU_SHARE,
            "flat": cpu is not None and cpu < FLAT_CPU_SHARE,
            "running_now": active,
            "idle_now": active is False,
            "captured": process.how is not None,
            "apart": process.identity in self.odd,
            "holds_gil": thread is not None and thread.owns_gil,
            "uninterruptible": process.state == "D",
            "runnable": process.state == "R",
            "end": process.state in ("Z", "X"),
            "compiler": any(name.rpartition("/")[2] in _COMPILERS for name in process.command[:1]),
            "parallel_tokenizers": tokenizers in ("true", "1", "on", "yes"),
            "serial_tokenizers": tokenizers in ("false", "0", "off", "no"),
        }
        yield from (word for word, true in known.items() if true)

    def _copies_parent(self, process: ProcessEvidence) -> bool:
        """Whether it has its parent's command line: a fork without exec, by a list of processes."""
        return any(
            _related("parent", one, Bound(process=process, thread=None))
            and bool(one.command)
            and one.command == process.command
            for one in self.evidence.processes
        )


def fits(wanted: Sequence[str], known: frozenset[str]) -> bool:
    """Whether every entry holds: a word, `!word`, or several with `|` between them."""
    return all(
        any((word[1:] not in known) if word[0] == "!" else word in known for word in one.split("|"))
        for one in wanted
    )


def _related(who: str, other: ProcessEvidence, root: Bound | None) -> bool:
    if root is None or who == "any":
        return True
    process = root.process
    here = other.part == process.part
    match who:
        case "same":
            return other.identity == process.identity
        case "parent":
            return here and other.pid == process.ppid
        case "child":
            return here and other.ppid == process.pid
    return other.identity != process.identity


def _kernel_fits(pattern: str, process: ProcessEvidence) -> bool:
    """The waiting place, or any frame of the kernel stack."""
    places = [process.wchan or "", *process.kernel[:_KERNEL_FRAMES_CAP]]
    return any(compiled(pattern).search(place) for place in places)


def _frames_fit(clause: Clause, thread: ThreadStack) -> bool:
    if not thread.frames:
        return False
    frames = own_frames(thread.frames)
    if clause.frames and not find_chain(clause.frames, frames):
        return False
    if clause.top:
        python = [frame for frame in frames if not frame.native]
        native = [frame for frame in frames[: clause.depth * _NATIVE_DEPTH] if frame.native]
        tops = [*native, *python[: clause.depth]]
        if not any(frame_matches(wanted, frame) for wanted in clause.top for frame in tops):
            return False
    if any(frame_matches(pattern, frame) for pattern in clause.without for frame in frames):
        return False
    if clause.thread == "any" and is_idle_helper(thread):
        return False
    if clause.source is None:
        return True
    deciding = deciding_frame(frames)
    source = deciding.source if deciding else None
    return source is not None and compiled(clause.source).search(source[:LINE_CAP]) is not None
