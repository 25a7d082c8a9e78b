"""Which thread of a dump is the main one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack
from watchdog_train.evidence.text.formats import Head


def with_main(
    threads: Iterable[tuple[Head, tuple[Frame, ...]]], pid: int | None
) -> tuple[ThreadStack, ...]:
    """The threads with the main one marked, by its name, its id, or what is at its bottom."""
    listed = list(threads)
    main = _main_position(listed, pid)
    return tuple(
        ThreadStack(
            frames=frames,
            name=head.name,
            os_id=head.os_id,
            main=at == main,
            active=head.active,
            owns_gil=head.owns_gil,
        )
        for at, (head, frames) in enumerate(listed)
    )


def _main_position(threads: list[tuple[Head, tuple[Frame, ...]]], pid: int | None) -> int | None:
    for at, (head, _) in enumerate(threads):
        if head.main or (head.name or "").strip("\"'") == "MainThread":
            return at
    for at, (head, _) in enumerate(threads):
        if pid is not None and head.os_id == pid:
            return at
    for at, (_, frames) in enumerate(threads):
        if frames and frames[-1].name in ("<module>", "_start", "__libc_start_main", "main"):
            return at
    if threads and threads[0][0].tool == "fault handler":
        return len(threads) - 1  # it prints the oldest thread last
    return 0 if len(threads) == 1 else None
