"""How long to wait, by the wait of the root: the first row of the table that applies.

Of several that could end a wait the longest limit counts, of several that are all needed the
shortest. An unknown wait never shortens a known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

import msgspec

from watchdog_train.core.diagnosis.facts import FLAT_CPU_SHARE
from watchdog_train.core.diagnosis.stacks import ThreadStack, any_matches
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.explanation import Patience, PatienceRow, Silence
from watchdog_train.core.policy import WaitLimits
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.explanation import silent_nodes, standstill
from watchdog_train.explain.frame_sets import HAS_A_TASK, NO_TASK
from watchdog_train.explain.graph import Node, Waits

_STANDARD = ("select.py", "selectors.py", "asyncio/", "multiprocessing/", "subprocess.py")
_FOR_RANKS = (x.CollectiveWait, x.StoreWait, w.ChildWait)
"""Waits for other processes of the job."""
_LOOPBACK = ("127.", "[::1]", "localhost", "::1")


def limit_s(row: PatienceRow, silence: Silence, limits: WaitLimits) -> float | None:
    """Seconds of quiet before a row is a stall; None: never by itself."""
    saving = silence.phase in ("eval", "checkpoint")
    least_s = limits.proven_s
    if saving:
        least_s = max(least_s, limits.proven_saving_s)
    if silence.early:
        least_s = max(least_s, limits.proven_early_s)
    unknown_s = limits.unknown_early_s if silence.early else limits.unknown_s
    found = {
        "proven": least_s,
        "dead-holder": limits.proven_saving_s,
        "releaser-died": limits.nobody_left_s,
        "nobody-left": limits.nobody_left_s,
        "fifo": limits.proven_saving_s
        if silence.phase in ("train", "checkpoint")
        else limits.poll_s,
        "unknown": unknown_s,
        "at-work": unknown_s,
        "network": limits.network_s * (3 if silence.phase == "eval" else 1),
        "poll": limits.poll_s,
        "outsider": limits.poll_s,
        "live-lock": limits.live_lock_s,
    }.get(row)
    return None if found is None else max(found, least_s)


def patience(
    graph: Mapping[Node, Waits],
    doing: Mapping[Node, x.Standstill],
    silent: Iterable[Node],
    *,
    silence: Silence,
    limits: WaitLimits,
    rows: Mapping[Node, PatienceRow] | None = None,
) -> Patience:
    """The limit for a job whose silent nodes all have to move.

    Args:
        graph: who could end whose wait.
        doing: what each node does.
        silent: the nodes that are judged.
        silence: where in the training.
        limits: the settings.
        rows: of nodes of which more is known than their own wait.
    """
    table = _Table(graph, doing, rows or {}, silence, limits)
    return table.shortest([table.of(node) for node in silent if node in graph])


def judge(facts: Chains, *, silence: Silence, limits: WaitLimits) -> Patience:
    evidence = facts.evidence
    if evidence.exchanging:
        return Patience(row="at-work", limit_s=limit_s("at-work", silence, limits))
    doing = {at: standstill(facts, at) for at in facts.waits}
    for at in _asking(facts):
        loop = Patience(row="live-lock", limit_s=limits.live_lock_s, root=doing[at])
        return msgspec.structs.replace(loop, line=facts.nodes[at].process.asks)
    rows = {at: row for at, one in doing.items() if (row := _known_row(facts, at, one.doing))}
    found = patience(
        facts.waits, doing, silent_nodes(facts), silence=silence, limits=limits, rows=rows
    )
    lines = (doing[at].own for at in silent_nodes(facts))
    return msgspec.structs.replace(found, line=next((one for one in lines if one), None))


def _asking(facts: Chains) -> tuple[int, ...]:
    """The processes that only poll, if every other one waits for the job and uses no CPU."""
    found = []
    for at, node in enumerate(facts.nodes):
        share = node.process.cpu_share
        if node.inner or node.idle or isinstance(node.doing, x.End):
            continue
        if node.process.asks is not None:
            found.append(at)
            continue
        waits = node.process.role == "launcher" or isinstance(node.doing, _FOR_RANKS)
        if share is None or share >= FLAT_CPU_SHARE or not waits:
            return ()
    return () if facts.unseen() else tuple(found)


def _serves(threads: Iterable[ThreadStack]) -> bool:
    """A worker without a task that waits for one."""
    frames = [frame for thread in threads for frame in thread.frames]
    return any_matches(NO_TASK, frames) and not any_matches(HAS_A_TASK, frames)


def _known_row(facts: Chains, at: int, doing: x.Doing) -> PatienceRow | None:
    if _is_proven(facts, at, doing):
        return "proven"
    if facts.nodes[at].died is not None:
        return "releaser-died"
    owners = {lock.owner_alive for lock in facts.evidence.locks}
    if isinstance(doing, w.FileLockWait) and False in owners and True not in owners:
        return "dead-holder"
    return "service" if _serves(facts.nodes[at].process.threads) else None


def _is_proven(facts: Chains, at: int, doing: x.Doing) -> bool:
    """It can never end: sealed in two samples, held at a fork, or ranks in other collectives."""
    if isinstance(doing, x.CollectiveWait):
        seen = facts.evidence.world_size is not None and not facts.unseen()
        return bool(doing.mismatched) and not doing.absent and seen
    return facts.nodes[at].process.sealed is True


class _Table(msgspec.Struct):
    graph: Mapping[Node, Waits]
    doing: Mapping[Node, x.Standstill]
    rows: Mapping[Node, PatienceRow]
    silence: Silence
    limits: WaitLimits
    known: dict[Node, Patience] = {}
    asked: set[Node] = set()

    def of(self, node: Node) -> Patience:
        """Of one node; a node met again on the way waits in a circle."""
        if node in self.known:
            return self.known[node]
        if node in self.asked:
            return self._row("nobody-left", node)
        self.asked.add(node)
        found = self._of(node)
        self.asked.discard(node)
        self.known[node] = found
        return found

    def _of(self, node: Node) -> Patience:
        if node in self.rows:
            return self._row(self.rows[node], node)
        waits = self.graph[node]
        own = self._leaf(node)
        if waits.free or waits.halted:
            return own
        able = [n for n in waits.any_of if n in self.graph and not self.graph[n].idle]
        needed = [n for n in waits.needs if n in self.graph and not self.graph[n].idle]
        if needed:
            found = self.shortest([self.of(n) for n in needed])
            if not waits.complete and found.row == "nobody-left":
                return self._row("unknown", node)  # an unobserved process may be left
            return self._asked_by(node, found)
        if able:
            those = [self.of(n) for n in able]
            longest = max([*those, own] if not waits.complete else those, key=_length)
            return self._asked_by(node, longest)
        if not waits.complete or any(n not in self.graph for n in (*waits.needs, *waits.any_of)):
            return own
        return own if own.row != "unknown" else self._row("nobody-left", node)

    def _asked_by(self, node: Node, found: Patience) -> Patience:
        """A server waits for connections, whatever it does: the client shows what is waited for."""
        serves = found.root is not None and w.is_server(found.root.doing)
        return msgspec.structs.replace(found, root=self.doing[node]) if serves else found

    def shortest(self, found: list[Patience]) -> Patience:
        """Of waits that must all end. An unknown one does not shorten a known one."""
        known = [one for one in found if one.row not in ("unknown", "at-work")]
        return min(known or found or [self._row("unknown", None)], key=_length)

    def _row(self, row: PatienceRow, node: Node | None, look_in_s: float | None = None) -> Patience:
        return Patience(
            row=row,
            limit_s=limit_s(row, self.silence, self.limits),
            look_in_s=look_in_s,
            root=self.doing.get(node) if node is not None else None,
        )

    def _leaf(self, node: Node) -> Patience:
        """By the wait alone, as if no process of the job could end it."""
        still = self.doing.get(node)
        if still is None:
            return self._row("unknown", node)
        if isinstance(still.doing, w.SleepWait):
            left_s = still.doing.left_s
            if left_s is None or still.doing.repeats:
                return self._row("poll", node)
            if left_s > self.limits.longest_sleep_s:
                return self._row("unknown", node)
            return self._row("sleep", node, look_in_s=left_s)
        return self._row(row_of(still.doing, still), node)


def row_of(doing: x.Doing, still: x.Standstill) -> PatienceRow:  # noqa: PLR0912 - a table
    """The row of a wait that no process of the job can end.

    Args:
        doing: what is done, or one of several things that are polled for.
        still: which process does it, and where.
    """
    match doing:
        case w.FileWait(kind="fifo", others=()) if doing.complete:
            return "proven" if doing.unlinked else "fifo"
        case w.FileWait(network=network) if network and doing.kind != "fifo":
            return "network"
        case w.TcpWait(call="accept") | w.PipeWait(listens=True) | w.SleepWait():
            return "poll"
        case w.FileLockWait(holders=()) if doing.timed or not doing.path:
            return "poll"  # a library polls: the kernel would wake a blocked flock()
        case w.TcpWait(others=()) if not doing.address.startswith(_LOOPBACK):
            return "network"
        case w.FileWait(kind="fifo", others=(_, *_)) | w.PipeWait(others=(_, *_)) | w.TcpWait():
            return "outsider"
        case w.FileLockWait(holders=(_, *_)) | w.ChildWait(children=(_, *_)):
            return "outsider"
        case w.PollWait():
            # The user's own poll is one; a library's is as patient as what it polls.
            if still.own is not None and (still.at is None or still.at.file.startswith(_STANDARD)):
                return "poll"
            rows = [row_of(one, still) for one in doing.waits]
            return max(rows, key=_ORDER.index, default="unknown")
        case w.MutexWait(owner_lives=False):
            return "proven"
        case w.UnknownWait(call="signal"):
            return "poll"  # anybody may send it, a timer too
        case x.PythonLockWait(from_outside=True):
            return "poll"
        case w.TerminalWait():
            return "input"
        case w.Stopped():
            return "stopped"
        case w.Running() | x.Computing():
            return "at-work"
        case _:
            return "unknown"


_ORDER = get_args(PatienceRow)


def _length(one: Patience) -> tuple[float, int]:
    endless = one.limit_s if one.limit_s is not None else float("inf")
    until_s = one.look_in_s if one.row == "sleep" and one.look_in_s is not None else endless
    return until_s, _ORDER.index(one.row)
