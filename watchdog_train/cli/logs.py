"""`wtrain logs`: the captured output of a run, across attempts; -f follows it to the run's end."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from watchdog_train.cli.log_files import (
    Follower,
    LogStream,
    attempts_in,
    safe_for_terminal,
    streams_of,
    tail,
    whole,
)
from watchdog_train.cli.options import run_argument, runs_dir_option
from watchdog_train.errors import EXIT_INTERRUPTED, WtrainError
from watchdog_train.store.lock import is_held
from watchdog_train.store.resolve import resolve
from watchdog_train.store.run_paths import RunDirectory

POLL_S = 0.2
LOOK_EVERY_S = 1.0
"""Whether the run has ended is asked this often while nothing is written."""
FOLLOW_LINES = 20
LAST_EVENT_BYTES = 64 << 10


@click.command(short_help="Show the output of a run.")
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on showing it until the run ends.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines.")
@click.option("--rank", type=click.IntRange(min=0), help="Only lines that a launcher marked so.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt, 1 is the first.")
@click.option("--previous", is_flag=True, help="Only the attempt before the newest.")
@runs_dir_option
def logs(
    *,
    run_ref: str | None,
    follow: bool,
    lines: int | None,
    rank: int | None,
    attempt: int | None,
    previous: bool,
    runs_dir: Path | None,
) -> None:
    """Show what the training wrote, its stdout on stdout and its stderr on stderr.

    A terminal gets it without the control sequences that could change the terminal; a pipe or a
    file gets the bytes as they are.
    """
    run = resolve(run_ref, runs_dir)
    if run_ref is None:
        click.echo(f"wtrain: output of {run.run_id}", err=True)
    if attempt is not None and previous:
        raise click.UsageError("--attempt and --previous exclude each other")
    if follow and (attempt is not None or previous):
        raise click.UsageError("-f follows the newest attempt; --attempt and --previous do not fit")
    chosen = _chosen(run, attempt, previous=previous)
    out = _Out(rank)
    try:
        if follow:
            _follow(run, out, FOLLOW_LINES if lines is None else lines)
        else:
            _show(run, chosen, out, lines)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if rank is not None and not out.matched and not follow:
        raise WtrainError(
            f"no line of this output is marked as one of rank {rank}",
            context=str(run.path),
            hint="ranks share one output here; torchrun --tee 3 marks each line",
            reference="logs-rank-unknown",
        )


def _chosen(run: RunDirectory, attempt: int | None, *, previous: bool) -> tuple[int, ...]:
    known = attempts_in(run)
    if previous:
        if len(known) < 2:
            raise WtrainError(
                "there is no attempt before the newest",
                context=run.run_id,
                reference="logs-attempt-unknown",
            )
        return (known[-2],)
    if attempt is None:
        return known
    if attempt not in known:
        raise WtrainError(
            f"there is no attempt {attempt}",
            context=run.run_id,
            hint=f"attempts: {', '.join(map(str, known[-20:])) or 'none yet'}",
            reference="logs-attempt-unknown",
        )
    return (attempt,)


class _Out:
    """Bytes to stdout or stderr, made safe for a terminal, lines of one rank only if asked."""

    def __init__(self, rank: int | None) -> None:
        self.matched = False
        self._rest: dict[bool, bytes] = {}
        # What torchrun --tee, torch's excepthook and the usual loggers put before a line.
        mark = rb"\[(?:default|rank|Rank |rank: ?)?%d\]" % rank if rank is not None else None
        self._mark = re.compile(rb"\s{0,8}" + mark) if mark is not None else None

    def write(self, data: bytes, *, to_stderr: bool) -> None:
        if self._mark is not None:
            data = self._of_rank(data, to_stderr=to_stderr)
        stream: BinaryIO = sys.stderr.buffer if to_stderr else sys.stdout.buffer
        stream.write(safe_for_terminal(data) if stream.isatty() else data)
        stream.flush()

    def _of_rank(self, data: bytes, *, to_stderr: bool) -> bytes:
        assert self._mark is not None  # noqa: S101 - asked by write()
        *lines, rest = (self._rest.get(to_stderr, b"") + data).split(b"\n")
        self._rest[to_stderr] = rest[-(1 << 20) :]
        kept = [line + b"\n" for line in lines if self._mark.match(line)]
        self.matched = self.matched or bool(kept)
        return b"".join(kept)


def _show(run: RunDirectory, chosen: Iterable[int], out: _Out, lines: int | None) -> None:
    if lines is None:
        for number in chosen:
            for stream in streams_of(run.attempt(number)):
                for block in whole(stream.path):
                    out.write(block, to_stderr=stream.to_stderr)
        return
    found: list[tuple[LogStream, bytes]] = []
    for number in reversed(tuple(chosen)):
        left = lines - sum(data.count(b"\n") for _, data in found)
        if left <= 0:
            break
        found += [(stream, tail(stream.path, left)) for stream in streams_of(run.attempt(number))]
    for stream, data in reversed(found):
        out.write(data, to_stderr=stream.to_stderr)


def _follow(run: RunDirectory, out: _Out, lines: int) -> None:
    attempt = 0
    followers: dict[str, Follower] = {}
    looked = ended = 0.0
    first = True
    while True:
        moved = _pump(followers, out)
        if moved:
            continue
        if ended:
            return
        newest = max(attempts_in(run), default=0)
        if newest != attempt:
            for follower in followers.values():
                follower.close()
            attempt, followers = newest, {}
        for stream in streams_of(run.attempt(attempt)) if attempt else ():
            if stream.name not in followers:
                followers[stream.name] = Follower(stream, lines=lines if first else None)
        first = first and not followers
        now = time.monotonic()
        if now - looked >= LOOK_EVERY_S:
            looked = now
            # One more pass over the files after the end: the last words come just before it.
            ended = now if _has_ended(run, attempt) else 0.0
        time.sleep(0.0 if ended else POLL_S)


def _pump(followers: dict[str, Follower], out: _Out) -> bool:
    moved = False
    for follower in followers.values():
        data = follower.read()
        if data:
            out.write(data, to_stderr=follower.stream.to_stderr)
            moved = True
    return moved


def _has_ended(run: RunDirectory, attempt: int) -> bool:
    """Whether nothing will be written any more; says so where nobody saw the end."""
    if _last_type(run.events) == "run_finished":
        return True
    if is_held(run.lock) is not False or not attempt:
        return False
    if not (run.attempt(attempt) / "exit.json").exists() and _keeper_lives(run.attempt(attempt)):
        return False
    click.echo(
        f"wtrain: the training has ended and its supervisor is dead: wtrain adopt {run.run_id}",
        err=True,
    )
    return True


class _Typed(msgspec.Struct):
    type: str


def _last_type(events: Path) -> str | None:
    """The type of the newest event, without reading the log."""
    try:
        with events.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_EVENT_BYTES))
            lines = file.read(LAST_EVENT_BYTES).split(b"\n")
        return msgspec.json.decode(lines[-2], type=_Typed).type
    except (OSError, IndexError, msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Keeper(msgspec.Struct):
    keeper_pid: int
    keeper_start: int


def _keeper_lives(attempt_dir: Path) -> bool:
    from watchdog_train.core.model import ProcessId
    from watchdog_train.system import current

    try:
        with (attempt_dir / "keeper.json").open("rb") as file:
            keeper = msgspec.json.decode(file.read(1 << 16), type=_Keeper)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    who = ProcessId(keeper.keeper_pid, keeper.keeper_start)
    return current().is_alive(who) is not False
