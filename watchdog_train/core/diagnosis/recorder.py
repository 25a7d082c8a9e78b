"""Flight Recorder dumps of torch -> the collective that each rank is in. Pure; opens no pickle.

Shapes (torch 2.13, gloo, seen; NCCL from its documented format): `entries`, oldest first, each
with a group, a sequence number in that group, an operation and a state; `pg_status`, by group, the
numbers of the last collective that was enqueued and completed. Numbers are strings in the JSON
variant and integers in the pickled one. gloo leaves the state at `scheduled` and only retires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_train.core.diagnosis.facts import CollectiveFact
from watchdog_train.core.diagnosis.stacks import printable

_ENTRIES_CAP = 20_000
_GROUPS_CAP = 256
_KEPT_ENTRIES = 200
_DIMENSIONS_CAP = 16
_TEXT_CAP = 100
_KEPT = (
    "collective_seq_id", "seq_id", "p2p_seq_id", "op_id", "record_id", "pg_id", "profiling_name",
    "state", "retired", "is_p2p", "timeout_ms", "time_created_ns", "time_discovered_started_ns",
    "time_discovered_completed_ns", "thread_name",
)  # fmt: skip


def looks_like_recorder(data: Any) -> bool:
    return _is_one(data) or (
        isinstance(data, dict)
        and bool(data)
        and all(
            str(key)[:32].lstrip("rank_").isdigit() and _is_one(value)
            for key, value in list(data.items())[:64]
        )
    )


def _is_one(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    return isinstance(data.get("entries"), list) or isinstance(data.get("pg_status"), dict)


def joined(dumps: Mapping[str, Any]) -> Any | None:
    """One dump from those of a rank's recorders, by the recorder's name; None without any.

    The one with content; of several all groups, named after their recorder, because recorders
    count independently even if their numbers are equal.
    """
    telling = {name: data for name, data in dumps.items() if _holds_something(data)}
    if len(telling) < 2:
        return next(iter(telling.values()), next(iter(dumps.values()), None))
    first = next(iter(telling.values()))
    entries: list[Any] = []
    states: dict[str, Any] = {}
    for name, data in telling.items():
        own = data.get("entries")
        entries += [
            {**entry, "process_group": [f"{name}:{_group(entry)}"]}
            for entry in (own if isinstance(own, list) else [])[-_ENTRIES_CAP // len(telling) :]
            if isinstance(entry, dict)
        ]
        states |= {f"{name}:{key}": value for key, value in _statuses(data).items()}
    return {"rank": first.get("rank"), "version": first.get("version"), "entries": entries,
            "pg_status": states}  # fmt: skip


def _holds_something(data: Any) -> bool:
    if not _is_one(data):
        return False
    return bool(data.get("entries")) or any(
        (_integer(state.get("last_enqueued_collective")) or 0) > 0
        for state in _statuses(data).values()
    )


def read_recorder(data: Any, rank: int | None) -> tuple[CollectiveFact, ...]:
    """For every group of this rank (or of each rank inside) its oldest unfinished collective."""
    if not isinstance(data, dict):
        return ()
    if not _is_one(data):
        facts: list[CollectiveFact] = []
        for key, value in list(data.items())[:4096]:
            digits = "".join(letter for letter in str(key)[:32] if letter.isdigit())[:6]
            if _is_one(value):
                facts += _facts(value, _rank(value, int(digits) if digits else None))
        return tuple(facts)
    return tuple(_facts(data, _rank(data, rank)))


def still_in(
    before: Sequence[CollectiveFact], after: Sequence[CollectiveFact]
) -> tuple[CollectiveFact, ...]:
    """The groups that did not move between two readings: a group with any progress is not stuck.

    Ranks of a healthy job are a collective apart at any moment; a difference proves nothing.
    """
    known = {(fact.rank, fact.group): _reach(fact) for fact in before}
    moving = {
        fact.group
        for fact in after
        if (fact.rank, fact.group) in known and known[fact.rank, fact.group] != _reach(fact)
    }
    return tuple(fact for fact in after if fact.group not in moving)


def advanced(before: Sequence[CollectiveFact], after: Sequence[CollectiveFact]) -> tuple[int, ...]:
    """Ranks that began or completed a collective between two readings: they work."""
    known = {(fact.rank, fact.group): _reach(fact) for fact in before}
    found = {
        fact.rank
        for fact in after
        for then in [known.get((fact.rank, fact.group))]
        if then is not None
        and any(
            old is not None and new is not None and new > old
            for old, new in zip(then, _reach(fact), strict=True)
        )
    }
    return tuple(sorted(found))


def trimmed(data: Any) -> dict[str, Any]:
    """A dump as plain, bounded data for a file: the last entries, without the stacks.

    Data from a pickle may contain itself, or the same list a million times.
    """
    if not isinstance(data, dict):
        return {}
    entries = data.get("entries")
    kept = (entries if isinstance(entries, list) else [])[-_KEPT_ENTRIES:]
    return {
        "rank": _rank(data, None),
        "version": _scalar(data.get("version")),
        "pg_status": {
            key: {
                str(name)[:_TEXT_CAP]: _scalar(number) for name, number in list(value.items())[:16]
            }
            for key, value in _statuses(data).items()
        },
        "entries": [_trimmed_entry(entry) for entry in kept if isinstance(entry, dict)],
    }


def _trimmed_entry(entry: dict[Any, Any]) -> dict[str, Any]:
    kept = {name: _scalar(entry[name]) for name in _KEPT if name in entry}
    return {
        **kept,
        "process_group": [_group(entry)],
        "input_sizes": _sizes(entry.get("input_sizes")),
        "output_sizes": _sizes(entry.get("output_sizes")),
    }


def _rank(data: dict[str, Any], rank: int | None) -> int | None:
    own = data.get("rank", rank)
    return own if isinstance(own, int) and 0 <= own < 1 << 24 else rank


def _facts(data: dict[str, Any], rank: int | None) -> list[CollectiveFact]:
    if rank is None:
        return []
    states = _statuses(data)
    chosen: dict[str, dict[str, Any]] = {}
    finished: dict[str, dict[str, Any]] = {}
    entries = data.get("entries")
    for entry in (entries if isinstance(entries, list) else [])[-_ENTRIES_CAP:]:
        if not isinstance(entry, dict) or entry.get("is_p2p") is True:
            continue
        group = _group(entry)
        if entry.get("state") == "completed" or entry.get("retired") is True:
            finished[group] = entry
        else:
            chosen.setdefault(group, entry)
    groups = [*dict.fromkeys([*chosen, *finished, *states])][:_GROUPS_CAP]
    return [
        _fact(rank, group, chosen.get(group) or finished.get(group), states.get(group))
        for group in groups
    ]


def _statuses(data: dict[str, Any]) -> dict[str, dict[Any, Any]]:
    """By group: its newest collectives."""
    status = data.get("pg_status")
    listed = list((status if isinstance(status, dict) else {}).items())[:_GROUPS_CAP]
    return {str(key)[:_TEXT_CAP]: value for key, value in listed if isinstance(value, dict)}


def _fact(rank: int, group: str, entry: dict[str, Any] | None, status: Any) -> CollectiveFact:
    entry, status = entry or {}, status or {}
    name = entry.get("profiling_name")
    op = name[:200].rpartition(":")[2].upper().replace("_", "") if isinstance(name, str) else None
    sizes = _sizes(entry.get("input_sizes"))
    enqueued = _integer(status.get("last_enqueued_collective"))
    seq = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    return CollectiveFact(
        rank=rank,
        group=printable(group),
        seq=seq if seq is not None else enqueued,
        op=printable(op) if op else None,
        size=str(sizes) if sizes is not None else None,
        last_enqueued=enqueued,
        last_completed=_integer(status.get("last_completed_collective")),
    )


def _reach(fact: CollectiveFact) -> tuple[int | None, int | None]:
    return fact.last_enqueued if fact.last_enqueued is not None else fact.seq, fact.last_completed


def _group(entry: dict[str, Any]) -> str:
    group = entry.get("process_group", entry.get("pg_id", ""))
    if isinstance(group, (list, tuple)):
        group = group[0] if group else ""
    return str(_scalar(group))


def _sizes(value: Any) -> list[list[int]] | None:
    """Shapes of the tensors: only a list of lists of numbers counts."""
    if not isinstance(value, list):
        return None
    shapes = (
        shape[:_DIMENSIONS_CAP] for shape in value[:_DIMENSIONS_CAP] if isinstance(shape, list)
    )
    return [[n for n in shape if isinstance(n, int) and abs(n) < 1 << 60] for shape in shapes]


def _scalar(value: Any) -> str | int | bool | None:
    if isinstance(value, str):
        return printable(value, _TEXT_CAP)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 60 else None
