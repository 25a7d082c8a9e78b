"""Which thread of a dump is the main one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import ThreadStack


def with_main(
    threads: Sequence[ThreadStack], pid: int | None, *, oldest_last: bool = False
) -> tuple[ThreadStack, ...]:
    """The threads with the main one marked, by its name, its id, or what is at its bottom.

    In another pid namespace neither name nor id tell it.
    """
    main = _main_position(threads, pid)
    if main is None and oldest_last and threads:
        main = len(threads) - 1
    return tuple(msgspec.structs.replace(one, main=at == main) for at, one in enumerate(threads))


def _main_position(threads: Sequence[ThreadStack], pid: int | None) -> int | None:
    for at, one in enumerate(threads):
        if one.main or (one.name or "").strip("\"'") == "MainThread":
            return at
    for at, one in enumerate(threads):
        if pid is not None and one.os_id == pid:
            return at
    for at, one in enumerate(threads):
        python = [frame.name for frame in one.frames if not frame.native][-1:]
        bottom = one.frames[-1].name if one.frames else ""
        if python == ["<module>"] or bottom in ("_start", "__libc_start_main", "main"):
            return at
    return 0 if len(threads) == 1 and not is_idle_helper(threads[0]) else None
