"""What ranks recorded about their collectives: who is behind, and whose operation differs. Pure.

Sources: the lines that torch's NCCL watchdog prints when a collective times out, and Flight
Recorder dumps. Compared within one process group; ranks that recorded nothing are named as such.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from watchdog_train.core.diagnosis.facts import CollectiveFact
from watchdog_train.core.diagnosis.log_lines import LogLine, rank_of
from watchdog_train.core.model import Value
from watchdog_train.core.model.progress import spans

Relation = Literal["different-operation", "different-size", "behind", "same"]
"""The one that explains most is first."""
_TIMEOUT = re.compile(
    r"(?:operation timeout|timed? ?out).{0,40}?Work\w{0,10}\((?P<fields>[^)]{1,400})"
)
_SEQ = re.compile(r"SeqNum=(?P<value>\d{1,12})")
_OP = re.compile(r"OpType=(?P<value>\w{1,40})")
_NUMEL = re.compile(r"Numel(?P<side>In|Out)=(?P<value>\d{1,18})")
_SHAPE = re.compile(r"TensorShape=\[(?P<value>[\d, ]{0,200})\]")
_STATUS = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,12})"
    r".{0,80}?last completed (?:NCCL )?work: (?P<completed>-?\d{1,12})"
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\d{1,6})(?: PG GUID (?P<guid>[^\s\]]{1,40}))?")


class Comparison(Value):
    relation: Relation
    culprit: int | None
    """The rank that differs or is behind; None if it is not a single one."""


def from_log(lines: Iterable[tuple[LogLine, int | None]]) -> list[CollectiveFact]:
    """Timeouts and states printed by the watchdogs, the first of each rank.

    A rank informed of another's timeout prints the state of its default group, which may be
    another group than the one that hangs: compare numbers only within one group.
    """
    found: dict[int, CollectiveFact] = {}
    for line, own in lines:
        text = line.text
        if "Work" not in text and "work: " not in text:
            continue
        # Ranks are renumbered inside a subgroup: the launcher's prefix has the global number.
        rank = own if own is not None else rank_of(line)
        timeout, status = _TIMEOUT.search(text), _STATUS.search(text)
        if rank is None or (timeout is None and status is None):
            continue
        group = _group(text)
        known = found.get(rank, CollectiveFact(rank=rank, group=group))
        if known.group and group and known.group != group:
            continue
        known = msgspec.structs.replace(known, group=known.group or group)
        if timeout is not None and known.op is None and known.seq is None:
            known = _with_timeout(known, timeout["fields"])
        if status is not None and known.last_enqueued is None:
            known = msgspec.structs.replace(
                known,
                last_enqueued=int(status["enqueued"]),
                last_completed=int(status["completed"]),
            )
        found[rank] = known
    return _of_one_group(list(found.values()))


def _of_one_group(facts: list[CollectiveFact]) -> list[CollectiveFact]:
    """By the groups that all ranks named; else as one group without ranks informed by others."""
    if all(fact.group for fact in facts):
        return facts
    hanging = {fact.group for fact in facts if fact.timed_out}
    return [
        msgspec.structs.replace(fact, group="")
        for fact in facts
        if not hanging or fact.timed_out or fact.group in hanging
    ]


def _with_timeout(fact: CollectiveFact, fields: str) -> CollectiveFact:
    seq, op, shape = _SEQ.search(fields), _OP.search(fields), _SHAPE.search(fields)
    sizes = [f"{found['side'].lower()} {found['value']}" for found in _NUMEL.finditer(fields)]
    return msgspec.structs.replace(
        fact,
        seq=int(seq["value"]) if seq else None,
        op=op["value"].strip("_").upper() if op else None,
        size=", ".join(sizes) or (shape["value"] if shape else None),
        timed_out=True,
    )


def _group(text: str) -> str:
    match = _GROUP.search(text)
    return (match["guid"] or match["id"]) if match else ""


def compare(facts: Sequence[CollectiveFact]) -> Comparison | None:
    """The group in which ranks differ most; None if no group has two ranks."""
    groups: dict[str, dict[int, CollectiveFact]] = {}
    for fact in facts:
        if fact.seq is not None or fact.op is not None or fact.last_enqueued is not None:
            groups.setdefault(fact.group, {}).setdefault(fact.rank, fact)
    found = [_compared(list(group.values())) for group in groups.values() if len(group) > 1]
    return min(found, key=lambda one: get_args(Relation).index(one.relation), default=None)


def _compared(facts: list[CollectiveFact]) -> Comparison:
    same_seq = len({fact.seq for fact in facts if fact.seq is not None}) <= 1
    ops = Counter(fact.op for fact in facts if fact.op)
    of_number: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
    for fact in facts:
        of_number[fact.seq].update([fact.op] if fact.op else [])
    mixed = next((counts for counts in of_number.values() if len(counts) > 1), None)
    sizes = Counter(fact.size for fact in facts if fact.size)
    all_tell = all(fact.last_enqueued is not None for fact in facts)
    reach = {fact.rank: fact.last_enqueued if all_tell else fact.seq for fact in facts}
    reached = {value for value in reach.values() if value is not None}
    relation: Relation = "same"
    culprit: int | None = None
    if mixed is not None:
        relation, culprit = "different-operation", _odd(facts, mixed, "op")
    elif same_seq and len(sizes) > 1 and not _uneven_by_nature(ops):
        relation, culprit = "different-size", _odd(facts, sizes, "size")
    elif len(reached) > 1:
        relation = "behind"
        least = min(reached)
        late = [rank for rank, value in reach.items() if value == least]
        culprit = late[0] if len(late) == 1 or len(late) * 2 < len(reach) else None
    return Comparison(relation=relation, culprit=culprit)


def pending(facts: Iterable[CollectiveFact], rank: int | None) -> tuple[str | None, int | None]:
    """Operation and number of the collective that a rank began and has not completed.

    Both None without a record; with several groups the number, or both, are None.
    """
    own = {
        (fact.op.lower(), fact.seq)
        for fact in facts
        if fact.rank == rank and fact.op is not None
        and (fact.timed_out or (fact.last_completed or 0) < (fact.last_enqueued or 0))
    }  # fmt: skip
    ops, numbers = {op for op, _ in own}, {seq for _, seq in own}
    return (ops.pop() if len(ops) == 1 else None), (numbers.pop() if len(own) == 1 else None)


def _uneven_by_nature(ops: Counter[str]) -> bool:
    """Operations in which ranks may send different amounts in a healthy run."""
    return all(any(word in op for word in ("TOALL", "TOALLV", "GATHERV")) for op in ops)


def _odd(
    facts: Iterable[CollectiveFact], counts: Counter[str], field: Literal["op", "size"]
) -> int | None:
    """The one rank of a minority; groups of similar size have no culprit."""
    value, number = min(counts.items(), key=lambda item: item[1])
    if number * 2 >= sum(counts.values()) or number > 1:
        return None
    return next((fact.rank for fact in facts if getattr(fact, field) == value), None)


def spans_text(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-6, 9`."""
    several = sorted(set(ranks))
    texts = (str(a) if a == b else f"{a}-{b}" for a, b in spans(several))
    return f"rank{'s' if len(several) > 1 else ''} {', '.join(texts)}"


_AT_BARRIER = re.compile(
    r"store[- _]based barrier .{0,60}?\brank:? (?P<rank>\d{1,6})\b.{0,120}?"
    r"world_size=(?P<size>\d{1,6}), (?:worker_count|num_workers_joined)=(?P<came>\d{1,6})"
)
_NAMED_SIZE_CAP = 4096


def not_come(lines: Iterable[tuple[LogLine, int | None]]) -> tuple[int, ...]:
    """Ranks missing from the barrier of the store, if the output names all that came.

    Each waiting rank prints its number and how many have come. If fewer print than came, output
    is missing and no rank can be named.
    """
    waiting: set[int] = set()
    size = came = 0
    for line, _ in lines:
        if "barrier" not in line.text:
            continue
        found = _AT_BARRIER.search(line.text)
        if found:
            waiting.add(int(found["rank"]))
            size = max(size, int(found["size"]))
            came = max(came, int(found["came"]))
    if len(waiting) != came or not waiting or size > _NAMED_SIZE_CAP:
        return ()
    return tuple(sorted(set(range(size)) - waiting))
