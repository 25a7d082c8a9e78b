"""The streams of a training: ends that it writes to, and ours, for the keeper and for after it.

Under a launcher that starts ranks each of them may get streams of its own. The visible output must
stay the same: a rank's own stream is a pseudo-terminal where the shared stream is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchdog_train.client import layout
from watchdog_train.keeper.messages import ready
from watchdog_train.supervisor.terminal import Terminal, open_stream, set_window_size

NAMES = ("output", "stdout", "stderr")
SELECT_FDS = 1024
"""The keeper waits for all of them with select(), which takes no higher number."""
SPARE_FDS = 64
"""Further files that a supervisor may need."""
RANK_CAP_BYTES = 64 * 1024
"""Minimum size kept of a rank's own output."""


class Ends:
    """Both ends of every stream, before the keeper has them; afterwards ours."""

    def __init__(
        self, terminal: Terminal, rank_streams: int = 0, *, is_shown: bool = False
    ) -> None:
        """`rank_streams`: ranks with own streams. `is_shown`: a user's pipe or file gets it all."""
        names = ("output",) if terminal.same_stream else ("stdout", "stderr")
        self.files = {name: f"{name}.log" for name in names}
        self.wake_read = self.wake_write = -1
        self._reads: dict[str, int] = {}
        self._writes: dict[str, int] = {}
        self.gates: dict[str, int] = {}
        """By stream, for the display: see Tail. A closed gate does not hold back the training."""
        self._gate_reads: dict[str, int] = {}
        self._ranks: list[dict[str, tuple[int, int]]] = []
        """For each rank by stream: read end and write end."""
        if sys.platform == "win32":  # the keeper makes pipes itself: handles do not travel as fds
            return
        on_terminal = {
            "output": terminal.stdout_is_terminal,
            "stdout": terminal.stdout_is_terminal,
            "stderr": terminal.stderr_is_terminal,
        }
        terminals = {name: terminal if on_terminal[name] else None for name in names}
        for name in names:
            self._reads[name], self._writes[name] = open_stream(terminals[name])
        for name in names if is_shown else ():
            if not on_terminal[name]:
                self._gate_reads[name], self.gates[name] = os.pipe()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        if sys.platform == "linux":  # a launcher reaches them by way of /proc
            import resource

            most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FDS, SELECT_FDS)
            if max(self._reads.values()) < most:
                while len(self._ranks) < rank_streams and self._open_rank(terminals, most):
                    pass

    def _open_rank(self, terminals: dict[str, Terminal | None], most_fd: int) -> bool:
        """Streams for one more rank; False if it must share the common ones.

        A shared stream is better than a pipe instead of a pseudo-terminal: output would differ.
        """
        made: dict[str, tuple[int, int]] = {}
        with suppress(OSError):
            for name, terminal in terminals.items():
                made[name] = open_stream(terminal)
        fits = [
            max(ends) < most_fd and os.isatty(ends[1]) == os.isatty(self._writes[name])
            for name, ends in made.items()
        ]
        if len(made) == len(terminals) and all(fits):
            self._ranks.append(made)
            return True
        _close(*(fd for ends in made.values() for fd in ends))
        return False

    def for_keeper(self) -> tuple[int, ...]:
        wake = () if self.wake_write < 0 else (self.wake_write,)
        ranks = (fd for rank in self._ranks for ends in rank.values() for fd in ends)
        ours = (*self._reads.values(), *self._gate_reads.values())
        return (*ours, *self._writes.values(), *ranks, *wake)

    def for_pump(self) -> tuple[int, ...]:
        return (*self.reads(), *self._gate_reads.values())

    def are_waiting(self) -> bool:
        return bool(ready(tuple(self.reads()), (), 0))

    def orders(self, log_cap_bytes: int) -> dict[str, Any]:
        if not self._reads:
            return {"streams": self.files, "fds": None, "child_fds": None, "wake_fd": None}
        output = self._writes.get("output", -1)
        child_fds = {
            "stdin": 0,
            "stdout": self._writes.get("stdout", output),
            "stderr": self._writes.get("stderr", output),
        }
        return {
            "streams": self.files,
            "fds": self._reads,
            "child_fds": child_fds,
            "wake_fd": self.wake_write,
            "gates": self._gate_reads,
            "ranks": self._rank_orders("", log_cap_bytes),
        }

    def drain_orders(self, attempt_dir: Path, log_cap_bytes: int) -> dict[str, Any]:
        """orders() for the pump that replaces a dead keeper: only our read ends are left."""
        folder = attempt_dir.absolute()
        return {
            "streams": {name: str(folder / file) for name, file in self.files.items()},
            "fds": self._reads,
            "wake_fd": None,
            "gates": self._gate_reads,
            "ranks": self._rank_orders(folder, log_cap_bytes),
        }

    def reads(self) -> Iterator[int]:
        yield from self._reads.values()
        for rank in self._ranks:
            for read, _ in rank.values():
                yield read

    def resize(self, rows: int, columns: int) -> None:
        for fd in self.reads():
            set_window_size(fd, rows, columns)

    def close_writes(self) -> None:
        """The keeper has its own."""
        ranks = (write for rank in self._ranks for _, write in rank.values())
        _close(*self._writes.values(), *ranks, self.wake_write)
        self._writes, self.wake_write = {}, -1
        self._ranks = [{name: (read, -1) for name, (read, _) in r.items()} for r in self._ranks]

    def close_reads(self) -> None:
        _close(*self.reads(), *self._gate_reads.values(), *self.gates.values(), self.wake_read)
        self._reads, self._ranks, self.wake_read = {}, [], -1
        self._gate_reads, self.gates = {}, {}

    def take_gates(self) -> dict[str, int]:
        """The caller owns them from now on."""
        gates, self.gates = self.gates, {}
        return gates

    def _rank_orders(self, folder: Path | str, log_cap_bytes: int) -> dict[str, Any] | None:
        if not self._ranks:
            return None
        streams = [
            {
                name: {
                    "path": os.path.join(folder, f"ranks/{number}/{name}.log"),
                    "fds": [fd for fd in ends if fd >= 0],
                }
                for name, ends in rank.items()
            }
            for number, rank in enumerate(self._ranks)
        ]
        return {
            "variable": layout.ENV_RANK_STREAMS,
            "cap_bytes": max(log_cap_bytes // len(self._ranks), RANK_CAP_BYTES),
            "streams": streams,
        }


class TakenEnds(Ends):
    """Read ends copied from a keeper that another supervisor has started."""

    def __init__(self, orders: Mapping[str, Any], take: Callable[[int], int | None]) -> None:
        """Copy the keeper's descriptors, which its orders may misname. OSError: one is missing."""
        numbers = _numbers(orders.get("fds"))
        self.files = {name: f"{name}.log" for name in numbers}
        self.wake_read = self.wake_write = -1
        self._writes, self.gates, self._gate_reads = {}, {}, {}
        self._reads = dict(_taken(numbers, take))
        self._ranks = [
            {name: (fd, -1) for name, fd in _taken(rank, take)}
            for rank in _rank_numbers(orders.get("ranks"))
        ]
        if not numbers or len(self._reads) < len(numbers):
            self.close_reads()
            raise OSError("the streams of the training cannot be had")


def _taken(
    numbers: Mapping[str, int], take: Callable[[int], int | None]
) -> Iterator[tuple[str, int]]:
    for name, number in numbers.items():
        fd = take(number)
        if fd is not None:
            yield name, fd


def _numbers(told: object) -> dict[str, int]:
    """By stream, if these can be descriptors."""
    known = told.items() if isinstance(told, dict) else ()
    return {
        name: number
        for name, number in known
        if name in NAMES and isinstance(number, int) and 0 <= number < SELECT_FDS
    }


def _rank_numbers(told: object) -> Iterator[dict[str, int]]:
    """For each rank the read ends."""
    streams = told.get("streams") if isinstance(told, dict) else None
    for rank in streams[:SELECT_FDS] if isinstance(streams, list) else ():
        about = rank.items() if isinstance(rank, dict) else ()
        fds = {name: one.get("fds") for name, one in about if isinstance(one, dict)}
        yield _numbers({name: fd[0] for name, fd in fds.items() if isinstance(fd, list) and fd})


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
