"""Does a signature fit the evidence, and which process is the culprit? Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watchdog_train.core.collectives import Comparison, compare, from_log
from watchdog_train.core.facts import (
    BUSY_CPU_SHARE,
    FLAT_CPU_SHARE,
    Evidence,
    HostFacts,
    ProcessEvidence,
)
from watchdog_train.core.log_lines import LINE_CAP
from watchdog_train.core.log_search import Hit, LogIndex, compiled
from watchdog_train.core.model import Value
from watchdog_train.core.ranks import standings
from watchdog_train.core.rules import HostClause, ProcessClause, RanksClause, Signature
from watchdog_train.core.stacks import (
    ThreadStack,
    deciding_frame,
    find_chain,
    frame_matches,
    is_idle_helper,
    is_idle_worker,
    own_frames,
)


class Bound(Value, frozen=True, kw_only=True):
    """A process that fits a clause, with the thread that did."""

    process: ProcessEvidence
    thread: ThreadStack | None


class Match(Value, frozen=True, kw_only=True):
    """A signature that fits."""

    signature: Signature
    bound: tuple[Bound, ...]
    """One per clause that is not `absent`; the first is the culprit."""
    hit: Hit | None
    """The log line that it was recognised by."""


class Scene:
    """One piece of evidence with what many signatures ask of it, worked out once."""

    def __init__(self, evidence: Evidence, frames: Mapping[str, str]) -> None:
        self.evidence = evidence
        self.logs = LogIndex(evidence.logs)
        self.standings = standings(evidence.processes, frames)
        facts = [*evidence.collectives, *from_log(self.logs.lines())]
        self.recorded = compare(facts)
        self.facts = tuple(facts)

    @property
    def ranks_seen(self) -> frozenset[int]:
        """Ranks that stacks or records tell something of."""
        seen = {p.rank for p in self.evidence.processes if p.role == "rank" and p.threads}
        seen |= {fact.rank for fact in self.facts}
        return frozenset(rank for rank in seen if rank is not None)

    @property
    def silent_ranks(self) -> tuple[int, ...]:
        """Ranks of which nothing is known, as far as the size of the job is known."""
        size = self.evidence.world_size or 0
        return tuple(sorted(set(range(min(size, 4096))) - self.ranks_seen))


def match_signature(signature: Signature, scene: Scene) -> Match | None:
    """The first way in which the signature fits."""
    evidence = scene.evidence
    if signature.why and evidence.why not in signature.why:
        return None
    if not _exit_fits(signature, evidence) or not _host_fits(signature.host, evidence.host):
        return None
    if signature.dead_lock_owner and not any(lock.owner_alive is False for lock in evidence.locks):
        return None
    if not _ranks_fit(signature.ranks, scene) or not _logs_fit(signature, scene.logs):
        return None
    hit = scene.logs.first(signature.log, crashed=evidence.why == "crash")
    if signature.log and hit is None:
        return None
    if not signature.processes:
        return Match(signature=signature, bound=(), hit=hit)
    for subject in _fitting(signature.processes[0], evidence.processes, scene):
        rest = _bind_rest(signature.processes[1:], subject.process, scene)
        if rest is not None:
            return Match(signature=signature, bound=(subject, *rest), hit=hit)
    return None


def _logs_fit(signature: Signature, logs: LogIndex) -> bool:
    """All that a signature asks of the logs but for the line that names the cause."""
    if signature.log_also and not logs.any(signature.log_also):
        return False
    if signature.log_without and logs.any(signature.log_without):
        return False
    if signature.log_times > 1:
        found = sum(1 for _ in logs.hits(signature.log))
        if found < signature.log_times:
            return False
    return signature.steps_over is None or logs.steps() > signature.steps_over


def _ranks_fit(clause: RanksClause | None, scene: Scene) -> bool:
    if clause is None:
        return True
    recorded = scene.recorded
    relation = recorded.relation if recorded else None
    return (
        (not clause.stacks or scene.standings.standing in clause.stacks)
        and (not clause.recorded or relation in clause.recorded)
        and (clause.seq_under is None or _early(recorded, clause.seq_under))
        and _is_or_unasked(clause.single_element, bool(recorded and recorded.single_element))
        and _is_or_unasked(clause.nothing_completed, bool(recorded and recorded.nothing_completed))
        and _is_or_unasked(clause.silent, bool(scene.silent_ranks))
        and _is_or_unasked(clause.steps_differ, _steps_differ(scene.logs.last_steps()))
    )


def _early(recorded: Comparison | None, limit: int) -> bool:
    return recorded is not None and recorded.seq is not None and recorded.seq < limit


def _steps_differ(steps: Mapping[int, float]) -> bool:
    return len(set(steps.values())) > 1


def _bind_rest(
    clauses: Sequence[ProcessClause], subject: ProcessEvidence, scene: Scene
) -> tuple[Bound, ...] | None:
    bound = []
    processes = scene.evidence.processes
    for clause in clauses:
        related = [other for other in processes if _related(clause.who, other, subject)]
        found = next(_fitting(clause, related, scene), None)
        if clause.absent:
            if found is not None:
                return None
        elif found is None:
            return None
        else:
            bound.append(found)
    return tuple(bound)


def _related(who: str, other: ProcessEvidence, subject: ProcessEvidence) -> bool:
    match who:
        case "same":
            return other.pid == subject.pid
        case "parent":
            return other.pid == subject.ppid
        case "child":
            return other.ppid == subject.pid
        case "other":
            return other.pid != subject.pid
        case _:
            return True


def _fitting(
    clause: ProcessClause, processes: Sequence[ProcessEvidence], scene: Scene
) -> Iterator[Bound]:
    for process in processes:
        if not _process_fits(clause, process):
            continue
        if clause.odd is not None and clause.odd != (process.pid in scene.standings.odd):
            continue
        if not _asks_for_stack(clause):
            yield Bound(process=process, thread=process.main)
            continue
        for thread in process.threads:
            if _thread_fits(clause, thread):
                yield Bound(process=process, thread=thread)
                break


def _asks_for_stack(clause: ProcessClause) -> bool:
    return bool(
        clause.chain
        or clause.top
        or clause.without
        or clause.source
        or clause.native is not None
        or clause.gil_holder is not None
    )


def _is_or_unasked(wanted: bool | None, actual: bool | None) -> bool:
    return wanted is None or wanted is actual


def _process_fits(clause: ProcessClause, process: ProcessEvidence) -> bool:
    return (
        (not clause.roles or process.role in clause.roles)
        and (not clause.state or process.state in clause.state)
        and _cpu_fits(clause.cpu, process.cpu_share)
        and _is_or_unasked(clause.sealed, process.sealed)
        and _is_or_unasked(clause.changed, process.changed)
        and _is_or_unasked(clause.captured, process.how is not None)
        and _is_or_unasked(clause.waits_for_input, process.waits_for_input)
        and (clause.forked is None or clause.forked is process.forked)
        and (clause.idle_worker is None or clause.idle_worker is is_idle_worker(process.threads))
        and (not clause.wchan or _kernel_fits(clause.wchan, process))
        and (clause.active is None or clause.active is _active(process))
        and (clause.command is None or _command_fits(clause.command, process.command))
        and all(
            name in process.environment and compiled(pattern).search(process.environment[name])
            for name, pattern in clause.environment.items()
        )
    )


def _command_fits(pattern: str, command: Sequence[str]) -> bool:
    return compiled(pattern).search(" ".join(command)[:LINE_CAP]) is not None


def _kernel_fits(patterns: Sequence[str], process: ProcessEvidence) -> bool:
    """The waiting place, or any frame of the kernel stack."""
    places = [process.wchan] if process.wchan else []
    places += process.kernel[:64]
    return any(compiled(pattern).search(place) for pattern in patterns for place in places)


def _active(process: ProcessEvidence) -> bool | None:
    """Whether a tool saw its main thread run; None when the tool does not tell."""
    main = process.main
    return main.active if main else None


def _cpu_fits(wanted: str | None, share: float | None) -> bool:
    match wanted:
        case "flat":
            return share is not None and share < FLAT_CPU_SHARE
        case "busy":
            return share is not None and share >= BUSY_CPU_SHARE
        case "not-busy":
            return share is None or share < BUSY_CPU_SHARE
        case _:
            return True


def _thread_fits(clause: ProcessClause, thread: ThreadStack) -> bool:
    if clause.thread != "any" and thread.main != (clause.thread == "main"):
        return False
    if not thread.frames or is_idle_helper(thread):
        return False
    if not _is_or_unasked(clause.gil_holder, thread.owns_gil):
        return False
    frames = own_frames(thread.frames)
    if clause.native is not None and clause.native != any(frame.native for frame in frames):
        return False
    if clause.chain and not find_chain(clause.chain, frames):
        return False
    top = frames[: clause.depth]
    if clause.top and not any(frame_matches(want, frame) for want in clause.top for frame in top):
        return False
    if any(frame_matches(pattern, frame) for pattern in clause.without for frame in frames):
        return False
    if clause.source is not None:
        deciding = deciding_frame(frames)
        source = deciding.source if deciding else None
        return source is not None and compiled(clause.source).search(source[:LINE_CAP]) is not None
    return True


def _exit_fits(signature: Signature, evidence: Evidence) -> bool:
    if not signature.exit_signal and not signature.exit_code:
        return True
    end = evidence.exit
    if end is None:
        return False
    # A shell or launcher in between turns a signal into 128+N, Python's own launchers into -N.
    signals = {end.signal}
    if end.code is not None:
        signals |= {end.code - 128 if end.code > 128 else None, -end.code if end.code < 0 else None}
    return bool(signals & set(signature.exit_signal)) or end.code in signature.exit_code


def _host_fits(clause: HostClause | None, host: HostFacts) -> bool:
    if clause is None:
        return True
    killed = bool(host.oom_kills) and host.oom_since_start
    return (
        (clause.oom_killed is None or clause.oom_killed == killed)
        and _over(host.shm_used_share, clause.shm_used_over)
        and _over(host.swap_used_share, clause.swap_used_over)
        and (
            clause.memory_available_under is None
            or (
                host.memory_available_share is not None
                and host.memory_available_share < clause.memory_available_under
            )
        )
    )


def _over(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value > limit)
