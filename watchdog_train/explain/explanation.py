"""Evidence -> who waits for whom -> what happened. Total: anything missing is reported."""

from __future__ import annotations

import msgspec

from watchdog_train.core.diagnosis.crash import sender_of
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.first_failure import first_observed
from watchdog_train.core.model import ExceptionFact
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.exceptions import CodePlace
from watchdog_train.core.model.progress import spans
from watchdog_train.explain import waits as of_thread
from watchdog_train.explain.chains import Chains, has_failed_end
from watchdog_train.explain.graph import Verdict, solve

_VICTIMS_CAP = 512
_ALSO_CAP = 8
_SIGTERM = 15
_TOLD = 60
"""Characters of a message's beginning that are searched in a line."""


def explain(graph: Chains, since_s: float | None = None) -> x.Explanation:
    """What happened, without a cause; families add the cause.

    Args:
        graph: of the evidence.
        since_s: seconds without progress.
    """
    evidence = graph.evidence
    silent = silent_nodes(graph)
    verdict = solve(graph.waits, silent)
    roots = sorted(verdict.roots, key=lambda at: _weight(graph, at, verdict))
    knot = max(verdict.knots, key=len, default=())
    root = through = None
    head: int | None = None
    alike: tuple[x.Who, ...] = ()
    also: tuple[x.Standstill, ...] = ()
    if roots and not (knot and _weight(graph, roots[0], verdict)[0] > 2):
        knot = ()
        head = roots[0]
        root = standstill(graph, head, since_s)
        through = _through(graph, head, verdict, since_s)
        grave = _weight(graph, roots[0], verdict)[:2]
        rest = [(at, standstill(graph, at, since_s)) for at in roots[1:]]
        alike = tuple(one.who for _, one in rest if _same(root, one))
        also = tuple(
            one
            for at, one in rest
            if not _same(root, one) and _weight(graph, at, verdict)[:2] == grave
        )[:_ALSO_CAP]
    elif not knot and verdict.lost:
        ordered = sorted(verdict.lost, key=lambda at: _weight(graph, at, verdict))
        found = [standstill(graph, at, since_s) for at in ordered]
        others = [one for one in found[1:] if not _same(found[0], one)]
        among = all(isinstance(one.doing, (x.CollectiveWait, x.StoreWait)) for one in found)
        if among and (others or graph.unseen()):  # one is missing, and none of these the root
            also = (found[0], *others)[:_ALSO_CAP]
            alike = tuple(one.who for one in found[1:] if _same(found[0], one))
        else:
            head, root = ordered[0], found[0]
            alike = tuple(one.who for one in found[1:] if _same(root, one))
            also = tuple(one for one in others if type(one.doing) is type(root.doing))[:_ALSO_CAP]
    elif not knot:
        root = told_end(evidence)
    victims = [
        x.Victim(
            who=graph.nodes[at].who,
            how=graph.nodes[at].doing,
            waits_for=tuple(graph.nodes[other].who for other in others),
            own=of_thread.places(graph.nodes[at].thread)[0],
        )
        for at, others in verdict.victims
        if at not in knot
        and not graph.nodes[at].inner
        and (root is None or graph.nodes[at].who != root.who)
    ]
    return x.Explanation(
        kind=_kind(evidence, root, proven=bool(knot) or bool(roots and roots[0] in verdict.stuck)),
        root=root,
        alike=alike,
        through=through,
        threads=_threads(graph, head),
        also=also,
        knot=tuple(standstill(graph, at, since_s) for at in knot),
        victims=tuple(victims[:_VICTIMS_CAP]),
        died=_died(graph, head),
        unknown=_unknown(graph, verdict),
    )


_BY_A_THREAD = (x.JoinWait, x.PythonLockWait, x.QueueWait, x.ImportWait, x.GilWait, w.MutexWait)


def _died(graph: Chains, head: int | None) -> ExceptionFact | None:
    if head is None:
        return None
    node = graph.nodes[head]
    other = getattr(node.doing, "between_processes", False) or not isinstance(
        node.doing, (x.JoinWait, x.PythonLockWait, x.QueueWait)
    )
    return node.died if other else node.process.died


def _through(
    graph: Chains, head: int, verdict: Verdict, since_s: float | None
) -> x.Standstill | None:
    """The deciding thread that waits for another one of its process, which is the root."""
    node = graph.nodes[head]
    if not node.inner or node.thread is None:
        return None
    owner = next((at for at, _ in verdict.victims if graph.owns(at, head)), None)
    if owner is None or not isinstance(graph.nodes[owner].doing, _BY_A_THREAD):
        return None
    found = standstill(graph, owner, since_s)
    if isinstance(found.doing, x.JoinWait):
        doing = msgspec.structs.replace(found.doing, name=node.thread.name)
        found = msgspec.structs.replace(found, doing=doing)
    return found


def _threads(graph: Chains, head: int | None) -> tuple[x.Standstill, ...]:
    """Of a root that waits for a thread of its process, the others that run the user's code.

    Of ranks that wait in a collective, their other threads in one.
    """
    by_a_thread = head is not None and isinstance(graph.nodes[head].doing, _BY_A_THREAD)
    inner = (
        standstill(graph, at)
        for at, node in enumerate(graph.nodes)
        if (by_a_thread and head is not None and graph.owns(head, at))
        or (node.inner and node.process.role == "rank" and isinstance(node.doing, x.CollectiveWait))
    )
    return tuple(one for one in inner if one.own is not None)[:_ALSO_CAP]


def silent_nodes(graph: Chains) -> list[int]:
    """Where the chains begin: the ranks; without ranks, all processes that are not idle."""
    if graph.ranks:
        return graph.ranks
    return [n for n, node in enumerate(graph.nodes) if not node.inner and not node.idle]


_ORDER: tuple[tuple[type, ...], ...] = (
    (x.End, w.Ended),
    (w.Stopped,),
    (w.TerminalWait,),
    (w.FileWait, w.FileLockWait, w.DiskWait, w.PipeWait, w.TcpWait, w.ChildWait, w.MutexWait,
     w.SharedSemaphoreWait, x.PythonLockWait, x.QueueWait, x.GilWait, x.ImportWait, x.JoinWait,
     x.BatchWait, x.LoopWait),
    (w.DeviceWait, x.CollectiveWait, x.StoreWait, w.SleepWait, w.PollWait),
    (x.Computing, w.Running, w.UnknownWait),
)  # fmt: skip
"""Of several roots the first in this order is the headline."""


def _weight(graph: Chains, at: int, verdict: Verdict) -> tuple[int, int, int, int]:
    doing = graph.nodes[at].doing
    kind = next((n for n, types in enumerate(_ORDER) if isinstance(doing, types)), len(_ORDER))
    if isinstance(doing, x.End) and not has_failed_end(doing):
        kind = 3
    rank = graph.nodes[at].process.rank
    return (
        kind,
        int(at not in graph.first_ends),
        -sum(at in others for _, others in verdict.victims),
        rank or 0,
    )


def standstill(graph: Chains, at: int, since_s: float | None = None) -> x.Standstill:
    node = graph.nodes[at]
    own, called = of_thread.places(node.thread)
    doing = node.doing
    end = node.process.ended
    if isinstance(doing, x.End):
        member = doing.signal == _SIGTERM and graph.first_ends and at not in graph.first_ends
        sender = end.sender if end is not None else None
        if sender is None and doing.signal is not None:
            sender = sender_of(doing.signal, graph.evidence.host, by_member=bool(member))
        doing = msgspec.structs.replace(doing, sender=sender or "unknown")
        raised = doing.raised
        own, called = (_place(raised.own), _place(raised.raised)) if raised else (None, None)
    return x.Standstill(
        who=graph.nodes[at].who,
        doing=doing,
        own=own,
        at=called,
        thread=node.thread.name if node.inner and node.thread is not None else None,
        since_s=None if isinstance(doing, x.End) else since_s,
        step=end.end.step if end is not None else None,
        died=node.died,
        command=node.process.command if own is None and node.process.role == "other" else (),
    )


def _place(code: CodePlace | None) -> x.Place | None:
    return x.Place(function=code.function, file=code.file, line=code.line) if code else None


def _same(one: x.Standstill, other: x.Standstill) -> bool:
    alike = type(one.doing) is type(other.doing)
    if isinstance(one.doing, x.End) and isinstance(other.doing, x.End):
        alike = (one.doing.code, one.doing.signal) == (other.doing.code, other.doing.signal)
    return alike and (one.own, one.at) == (other.own, other.at)


def told_end(evidence: Evidence, rank: int | None = None, line: str = "") -> x.Standstill | None:
    """Without a known process: the rank's exception that the line names, if it names one.

    Otherwise the exit status of the training, or the first failure by its launcher's output.
    """
    for fact in evidence.exceptions:
        named = fact.rank is not None and fact.rank == rank
        if line and named and fact.message[:_TOLD] in line:
            return x.Standstill(
                who=x.Who(pid=None, role="rank", rank=rank),
                doing=x.End(raised=fact),
                own=_place(fact.own),
                at=_place(fact.raised),
            )
    told = first_observed(evidence.logs)
    end = evidence.exit
    if end is not None and end.signal is not None:
        code: int | None = -end.signal
    else:
        code = end.code if end is not None else None
    if code is None:
        if told is None or not line:
            return None
        code = told[2]
    rank, pid = told[:2] if told is not None and told[2] == code else (None, None)
    signal = -code if code < 0 else None
    sender = sender_of(signal, evidence.host) if signal is not None and end is not None else None
    return x.Standstill(
        who=x.Who(pid=pid or None, role="rank", rank=rank),
        doing=x.End(
            code=code if signal is None else end.code if end is not None else None,
            signal=signal,
            sender=sender or "unknown",
        ),
    )


def _kind(evidence: Evidence, root: x.Standstill | None, *, proven: bool) -> x.ExplanationKind:
    if evidence.why == "crash":
        return "crash"
    if evidence.exchanging:
        return "healthy"
    if root is None and proven:
        return "hang"
    match root.doing if root is not None else None:
        case None:
            return "hang" if evidence.why == "stall" and evidence.processes else "unknown"
        case x.End() as end:
            return "crash" if has_failed_end(end) else "hang"
        case w.Stopped() | w.TerminalWait():
            return "stopped"
        case x.Computing():
            return "slow"
        case w.UnknownWait() | w.Running():
            return "unknown"
    # A dump on request may be of a healthy run.
    return "hang" if proven or evidence.why == "stall" else "unknown"


def _unknown(graph: Chains, verdict: Verdict) -> tuple[x.Unknown, ...]:
    found = [
        x.Unknown(what="stack", who=graph.nodes[n].who)
        for n, node in enumerate(graph.nodes)
        if node.process.role in ("rank", "worker")
        and node.process.how is None
        and node.process.state not in ("Z", "X")
        and not node.inner
    ]
    for at in verdict.lost:
        doing = graph.nodes[at].doing
        if isinstance(doing, (x.CollectiveWait, x.StoreWait, x.PythonLockWait)):
            continue  # part of the wait's sentence
        holder = isinstance(doing, (w.MutexWait, x.PythonLockWait, x.ImportWait, w.FileLockWait))
        if isinstance(doing, w.UnknownWait):
            found.append(x.Unknown(what="wait", who=graph.nodes[at].who))
        else:
            found.append(
                x.Unknown(what="holder" if holder else "other-end", who=graph.nodes[at].who)
            )
    unseen = graph.unseen()
    if unseen:
        found.append(x.Unknown(what="ranks", ranks=spans(unseen)))
    return tuple(found)
