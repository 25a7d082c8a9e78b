"""Does a signature fit the evidence, and which process is the culprit? Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watchdog_train.core.diagnosis.clauses import (
    asks_for_stack,
    exit_fits,
    host_fits,
    process_fits,
    thread_fits,
)
from watchdog_train.core.diagnosis.collectives import Comparison
from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.log_search import Hit, LogIndex, before
from watchdog_train.core.diagnosis.rules import (
    ALL_PLACEHOLDER,
    ProcessClause,
    RanksClause,
    Signature,
)
from watchdog_train.core.diagnosis.scene import Scene
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import Value


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
    alike: tuple[Bound, ...] = ()
    """Everybody whom the first clause fits as it does the culprit, where the words name them."""


def match_signature(signature: Signature, scene: Scene) -> Match | None:
    """The first way in which the signature fits."""
    evidence = scene.evidence
    if signature.why and evidence.why not in signature.why:
        return None
    if signature.dumped is not None and signature.dumped != scene.dumped:
        return None
    failure = scene.first_failure if signature.exit_signal else None
    if not exit_fits(signature, evidence, failure):
        return None
    if not host_fits(signature.host, evidence.host):
        return None
    if signature.dead_lock_owner and not any(lock.owner_alive is False for lock in evidence.locks):
        return None
    if not _ranks_fit(signature.ranks, scene) or not _logs_fit(signature, scene.logs):
        return None
    hit = _hit(signature, scene)
    if signature.log and hit is None:
        return None
    if not signature.processes:
        return Match(signature=signature, bound=(), hit=hit)
    found = _bindings(signature, scene)
    first = next(found, None)
    if first is None:
        return None
    names_all = ALL_PLACEHOLDER in signature.explanation
    alike = (first[0], *(bound[0] for bound in found)) if names_all else ()
    return Match(signature=signature, bound=first, hit=hit, alike=alike)


def _bindings(signature: Signature, scene: Scene) -> Iterator[tuple[Bound, ...]]:
    """Every way to fill the clauses, one for each culprit."""
    for subject in _fitting(signature.processes[0], scene.evidence.processes, scene):
        rest = _bind_rest(signature.processes[1:], subject, scene)
        if rest is not None:
            yield (subject, *rest)


def _hit(signature: Signature, scene: Scene) -> Hit | None:
    """The line that names the cause: first in time, with what must follow it behind it."""
    if not signature.log:
        return None
    logs = scene.logs
    if signature.log_last:
        return logs.last_steps_all(signature.log, signature.log_last)
    if signature.log_at_end:
        return next(logs.at_end(signature.log), None)
    hit = logs.first(signature.log, crashed=scene.evidence.why == "crash")
    if hit is None or not signature.log_then:
        return hit
    later = any(before(hit, other) is not False for other in logs.hits(signature.log_then))
    return hit if later else None


def _logs_fit(signature: Signature, logs: LogIndex) -> bool:
    """All that a signature asks of the logs but for the line that names the cause."""
    if signature.log_also and not logs.any(signature.log_also):
        return False
    if signature.log_without and logs.any(signature.log_without):
        return False
    if signature.progress and logs.movement() not in signature.progress:
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
        and _is(clause.single_element, bool(recorded and recorded.single_element))
        and _is(clause.nothing_completed, bool(recorded and recorded.nothing_completed))
        and _is(clause.silent, bool(scene.silent_ranks))
        and _is(clause.all_seen, bool(scene.evidence.world_size) and not scene.silent_ranks)
        and _is(clause.steps_differ, _differ(scene.logs.last_steps()))
        and _is(clause.agree, _agree(scene))
        and (clause.unrecorded is None or clause.unrecorded not in _recording(scene))
    )


def _is(wanted: bool | None, actual: bool) -> bool:
    return wanted is None or wanted is actual


def _agree(scene: Scene) -> bool:
    standings, recorded = scene.standings, scene.recorded
    odd = {p.rank for p in scene.evidence.processes if p.identity in standings.odd}
    return recorded is not None and recorded.culprit is not None and odd == {recorded.culprit}


def _recording(scene: Scene) -> frozenset[int]:
    return frozenset(fact.rank for fact in scene.facts)


def _early(recorded: Comparison | None, limit: int) -> bool:
    return recorded is not None and recorded.seq is not None and recorded.seq < limit


def _differ(steps: Mapping[int, float]) -> bool:
    return len(set(steps.values())) > 1


def _bind_rest(
    clauses: Sequence[ProcessClause], subject: Bound, scene: Scene
) -> tuple[Bound, ...] | None:
    bound = []
    processes = scene.evidence.processes
    for clause in clauses:
        related = [one for one in processes if _related(clause.who, one, subject.process)]
        taken = subject.thread if clause.who == "same" else None
        found = next(_fitting(clause, related, scene, taken), None)
        if clause.absent:
            if found is not None:
                return None
        elif found is None:
            return None
        else:
            bound.append(found)
    return tuple(bound)


def _related(who: str, other: ProcessEvidence, subject: ProcessEvidence) -> bool:
    here = other.part == subject.part
    match who:
        case "same":
            return other.identity == subject.identity
        case "parent":
            return here and other.pid == subject.ppid
        case "child":
            return here and other.ppid == subject.pid
        case "other":
            return other.identity != subject.identity
        case _:
            return True


def _fitting(
    clause: ProcessClause,
    processes: Sequence[ProcessEvidence],
    scene: Scene,
    taken: ThreadStack | None = None,
) -> Iterator[Bound]:
    """Processes that fit, each with the first thread that does and is not taken already."""
    for process in processes:
        if not process_fits(clause, process):
            continue
        if clause.odd is not None and clause.odd != (process.identity in scene.standings.odd):
            continue
        if not asks_for_stack(clause):
            yield Bound(process=process, thread=process.main)
            continue
        for thread in process.threads:
            if thread is not taken and thread_fits(clause, thread):
                yield Bound(process=process, thread=thread)
                break
