"""Flight Recorder dumps in JSON -> the collective that each rank is in. Pure; opens no pickle."""

from __future__ import annotations

from typing import Any

from watchdog_train.core.facts import CollectiveFact
from watchdog_train.core.stacks import printable

_ENTRIES_CAP = 20_000
_GROUPS_CAP = 256


def looks_like_recorder(data: Any) -> bool:
    """Whether JSON is a Flight Recorder dump, or one for each of several ranks."""
    if not isinstance(data, dict):
        return False
    if isinstance(data.get("entries"), list) or isinstance(data.get("pg_status"), dict):
        return True
    return bool(data) and all(
        str(key).lstrip("rank_").isdigit() and looks_like_recorder(value)
        for key, value in list(data.items())[:64]
    )


def read_recorder(data: Any, rank: int | None) -> tuple[CollectiveFact, ...]:
    """For every group of this rank (or of each rank inside) its oldest unfinished collective."""
    if not isinstance(data, dict):
        return ()
    if not isinstance(data.get("entries"), list) and not isinstance(data.get("pg_status"), dict):
        facts: list[CollectiveFact] = []
        for key, value in list(data.items())[:4096]:
            digits = "".join(letter for letter in str(key) if letter.isdigit())[:6]
            facts += read_recorder(value, int(digits) if digits else None)
        return tuple(facts)
    own = data.get("rank", rank)
    if not isinstance(own, int):
        return ()
    return tuple(_facts(data, own))


def _facts(data: dict[str, Any], rank: int) -> list[CollectiveFact]:
    status = data.get("pg_status")
    status = status if isinstance(status, dict) else {}
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
    groups = [*dict.fromkeys([*chosen, *finished, *map(str, status)])][:_GROUPS_CAP]
    return [
        _fact(rank, group, chosen.get(group) or finished.get(group), status.get(group))
        for group in groups
    ]


def _fact(rank: int, group: str, entry: dict[str, Any] | None, status: Any) -> CollectiveFact:
    entry = entry or {}
    status = status if isinstance(status, dict) else {}
    name = entry.get("profiling_name")
    op = name.rpartition(":")[2].upper().replace("_", "") if isinstance(name, str) else None
    size = entry.get("input_sizes")
    enqueued = _integer(status.get("last_enqueued_collective"))
    seq = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    return CollectiveFact(
        rank=rank,
        group=printable(group),
        seq=seq if seq is not None else enqueued,
        op=printable(op) if op else None,
        size=printable(str(size)) if isinstance(size, list) else None,
        last_enqueued=enqueued,
        last_completed=_integer(status.get("last_completed_collective")),
        from_recorder=True,
    )


def _group(entry: dict[str, Any]) -> str:
    group = entry.get("process_group", entry.get("pg_id", ""))
    if isinstance(group, list):
        group = group[0] if group else ""
    return str(group)[:100]


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 60 else None
