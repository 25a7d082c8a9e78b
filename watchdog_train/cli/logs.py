"""`wtrain logs`: the captured output of a run, across attempts; -f follows it."""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import msgspec

from watchdog_train.cli.event_watch import EventWatch
from watchdog_train.cli.log_files import (
    BLOCK_BYTES,
    LogStream,
    attempts_in,
    has_rank_files,
    rank_streams_of,
    since_moment,
    streams_of,
    tail,
)
from watchdog_train.cli.options import of_run
from watchdog_train.cli.reading import look, read_run
from watchdog_train.cli.screen import echo
from watchdog_train.config.schema import BadValueError, parse_duration
from watchdog_train.core.events import AttemptLaunching, Milestones, Progress, RunStarted
from watchdog_train.core.job.machines import FOLDER
from watchdog_train.errors import EXIT_INTERRUPTED, WtrainError
from watchdog_train.report.document import machines_now
from watchdog_train.report.places_text import milestone_lines
from watchdog_train.report.words import SafeOutput, listed
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.display import Tail
from watchdog_train.supervisor.hands.launch import read_orders
from watchdog_train.system import current
from watchdog_train.trusted_files import names

POLL_S = 0.2
LOOK_EVERY_S = 1.0
"""How often to check for the end of the run while nothing is written."""
FOLLOW_LINES = 20


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the output of this rank.")
@click.option("--machine", metavar="NAME", help="Only the output of this machine of a job.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt, 1 is the first.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only output from then on: 10m (ago), 23:10, or 2026-11-21T23:10.",
)
@click.option(
    "--milestones",
    is_flag=True,
    help="Instead: the startup timelines of all ranks, numbered, in the order of time.",
)
@of_run
def logs(
    *,
    run_ref: str | None,
    follow: bool,
    lines: int | None,
    rank: int | None,
    machine: str | None,
    attempt: int | None,
    since: str | None,
    milestones: bool,
    runs_dir: Path | None,
) -> None:
    """Show the output of the training: its stdout on stdout, its stderr on stderr.

    Control sequences that could change a terminal are removed there; a pipe or a file gets the
    bytes as they are. --since begins up to ten seconds before the given time.
    """
    run = resolve(run_ref, runs_dir)
    if run_ref is None:
        echo(f"wtrain: output of {run.run_id}", err=True)
    if follow and attempt is not None:
        raise click.UsageError("-f follows the newest attempt; --attempt does not fit")
    if since is not None and lines is not None:
        raise click.UsageError("--since and -n exclude each other")
    chosen = _chosen(run, attempt)
    if milestones:
        if follow or lines is not None or since is not None or machine is not None:
            raise click.UsageError("--milestones goes with --rank and --attempt only")
        show_milestones(run, chosen, rank)
        return
    moment = None if since is None else moment_of(since)
    out = _Out(rank, _part(run, machine, rank))
    if machine is None and rank is None and (others := _machines(run, chosen)):
        echo(f"wtrain: also of {listed(others)}: --machine NAME, --rank N", err=True)
    try:
        if follow:
            if moment is not None:
                _show_since(run, chosen, out, moment)
            default = FOLLOW_LINES if moment is None else 0
            _follow(run, out, default if lines is None else lines)
        elif lines is not None:
            _show_last(run, chosen, out, lines)
        else:
            _show_since(run, chosen, out, moment or 0.0)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if rank is not None and not out.moved and not follow:
        _explain_nothing(run, chosen, rank, out.part)


def _chosen(run: RunDirectory, attempt: int | None) -> tuple[int, ...]:
    known = attempts_in(run)
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


def moment_of(text: str) -> float:
    """Unix seconds of a time ago, of a time of day in the last 24 hours, or of a date and time."""
    try:
        return time.time() - parse_duration(text)
    except BadValueError:
        pass
    now = dt.datetime.now()  # noqa: DTZ005 - what a person types is local time
    with suppress(ValueError):
        then = dt.datetime.combine(now, dt.time.fromisoformat(text))
        return (then if then <= now else then - dt.timedelta(days=1)).timestamp()
    with suppress(ValueError):
        return dt.datetime.fromisoformat(text).timestamp()
    raise click.BadParameter(
        f"'{text[:40]}' is no time; write 10m, 23:10 or 2026-11-21T23:10", param_hint="--since"
    )


def _explain_nothing(run: RunDirectory, chosen: Iterable[int], rank: int, part: _Part) -> None:
    """Explain an empty answer; WtrainError: no such rank, or its output is not separate."""
    unmarked = f"output is marked as one of rank {rank}"
    if part.folder and not part.is_rank:  # an agent sends one stream for all of its ranks
        what = f"no line of this machine's {unmarked}"
        hint = f"wtrain logs --machine {part.folder.rpartition('/')[2]} shows all of it"
    elif rank in (known := _ranks_of(run)) and any(
        read_orders(run.attempt(number)).get("ranks") for number in chosen
    ):
        return echo(f"wtrain: rank {rank} has written nothing", err=True)
    elif known and rank not in known:
        what = f"there is no rank {rank} in this run"
        hint = f"ranks: {', '.join(map(str, sorted(known)[:20]))}"
    else:
        what = f"no line of this {unmarked}"
        hint = (
            "here ranks share one output; torchrun in the command itself lets wtrain tell them "
            "apart, and torchrun --tee 3 marks each line"
        )
    raise WtrainError(what, context=run.run_id, hint=hint, reference="logs-rank-unknown")


def _ranks_of(run: RunDirectory) -> set[int]:
    ranks: set[int] = set()
    for event in read_run(run).events:
        if isinstance(event, RunStarted) and event.launcher is not None:
            ranks.update(range(event.launcher.processes or 0))
        elif isinstance(event, Progress):
            ranks.update(rank for group in event.ranks for rank, _ in group.each())
    return ranks


class _Part(NamedTuple):
    folder: str = ""
    """Below the folder of an attempt; empty: the supervisor's own machine."""
    is_rank: bool = False
    """The rank is the only one of that machine, so all of the output is its own."""


def _part(run: RunDirectory, machine: str | None, rank: int | None) -> _Part:
    """The machine with this name, or the one on which the rank ran last; WtrainError: unknown."""
    if machine is None and rank is None:
        return _Part()
    found = machines_now(read_run(run).state)
    if machine is not None:
        one = next((each for each in found if machine in (each.name, each.hostname)), None)
        if one is None:
            known = ", ".join(f"{each.name} ({each.hostname})" for each in found[:20])
            raise WtrainError(
                f"there is no machine {machine[:64]} in this run",
                context=run.run_id,
                hint=f"machines: {known}" if known else "it ran on one machine",
                reference="logs-machine-unknown",
            )
    else:
        one = next((each for each in found if rank in each.ranks), None)
    if one is None:
        return _Part()
    folder = f"{FOLDER}/{one.name}" if one is not found[0] else ""
    return _Part(folder=folder, is_rank=one.ranks == (rank,))


def _machines(run: RunDirectory, chosen: Iterable[int]) -> list[str]:
    found: set[str] = set()
    for number in chosen:
        with suppress(OSError):
            found.update(names(run.attempt(number) / FOLDER))
    return sorted(found)


class _Out:
    """Bytes to stdout or stderr, made safe for a terminal, lines of one rank only if asked."""

    def __init__(self, rank: int | None, part: _Part) -> None:
        self.rank = rank
        self.part = part
        self.moved = False
        self._rest: dict[bool, bytes] = {}
        self._safe = (SafeOutput(), SafeOutput())
        # What torchrun --tee, torch's excepthook and the usual loggers put before a line.
        mark = rb"\[(?:default|rank|Rank |rank: ?)?%d\]" % rank if rank is not None else None
        self._mark = re.compile(rb"\s{0,8}" + mark) if mark is not None else None

    def write(self, data: bytes, source: LogStream) -> None:
        to_stderr = source.name == "stderr"
        if self._mark is not None and not source.of_rank:
            data = self._of_rank(data, to_stderr=to_stderr)
        self.moved = self.moved or bool(data)
        stream: BinaryIO = sys.stderr.buffer if to_stderr else sys.stdout.buffer
        stream.write(self._safe[to_stderr](data) if stream.isatty() else data)
        stream.flush()

    def _of_rank(self, data: bytes, *, to_stderr: bool) -> bytes:
        assert self._mark is not None  # noqa: S101 - asked by write()
        *lines, rest = (self._rest.get(to_stderr, b"") + data).split(b"\n")
        self._rest[to_stderr] = rest[-(1 << 20) :]
        kept = [line + b"\n" for line in lines if self._mark.match(line)]
        return b"".join(kept)


def _sources(
    run: RunDirectory, number: int, out: _Out, *, follow: bool = False
) -> tuple[LogStream, ...]:
    """The files that hold the wanted output: a rank's own files, else those of all ranks."""
    attempt = run.attempt(number)
    folder, rank = attempt / out.part.folder, out.rank
    if rank is None:
        return streams_of(folder)
    if out.part.is_rank:
        return tuple(msgspec.structs.replace(stream, of_rank=True) for stream in streams_of(folder))
    own = rank_streams_of(folder, rank)
    # Where ranks have files, one without a file has written nothing. A file may come later while
    # we follow, and the file of all has its lines again: so the launcher decides from the start.
    separate = read_orders(attempt).get("ranks") if follow else own or has_rank_files(folder)
    return own if separate else streams_of(folder)


def _show_last(run: RunDirectory, chosen: Iterable[int], out: _Out, lines: int) -> None:
    found: list[tuple[LogStream, bytes]] = []
    for number in reversed(tuple(chosen)):
        left = lines - sum(data.count(b"\n") for _, data in found)
        if left <= 0:
            break
        sources = _sources(run, number, out)
        found += [(stream, tail(stream.path, left)) for stream in sources]
    for stream, data in reversed(found):
        out.write(data, stream)


def _show_since(run: RunDirectory, chosen: Iterable[int], out: _Out, moment: float) -> None:
    for number in chosen:
        for stream in _sources(run, number, out):
            for block in since_moment(stream.path, moment):
                out.write(block, stream)


def _follow(run: RunDirectory, out: _Out, lines: int) -> None:
    watch, attempt = EventWatch(run), 0
    followed: dict[str, tuple[LogStream, Tail]] = {}
    looked = ended = 0.0
    first = True
    while True:
        moved = False
        for stream, file in followed.values():
            if data := file.read(BLOCK_BYTES):
                out.write(data, stream)
                moved = True
        if moved:
            continue
        if ended:
            return
        newest = max(attempts_in(run), default=0)
        if newest != attempt:
            for _, file in followed.values():
                file.close()
            attempt, followed = newest, {}
        for stream in _sources(run, attempt, out, follow=True) if attempt else ():
            if stream.name not in followed:
                if first:
                    out.write(tail(stream.path, lines), stream)
                followed[stream.name] = stream, Tail(stream.path, from_end=first)
                followed[stream.name][1].look()
        first = first and not followed
        now = time.monotonic()
        if now - looked >= LOOK_EVERY_S:
            looked = now
            # One more pass over the files after the end: the last output comes just before it.
            ended = now if _has_ended(watch, run) else 0.0
        time.sleep(0.0 if ended else POLL_S)


def _has_ended(watch: EventWatch, run: RunDirectory) -> bool:
    """Whether no more output can come; prints a line where the supervisor died before the end."""
    watch.new()
    attempt = watch.state.attempt
    if watch.state.finished:
        return True
    if not watch.lost or attempt is None:
        return False
    unseen = not (run.attempt(attempt.attempt) / "exit.json").exists()
    if unseen and attempt.keeper is not None and current().is_alive(attempt.keeper) is not False:
        return False
    echo(
        f"wtrain: the training has ended and its supervisor is dead: wtrain adopt {run.run_id}",
        err=True,
    )
    return True


def show_milestones(run: RunDirectory, chosen: Collection[int], rank: int | None) -> None:
    """Print the milestones of the chosen attempts: the recorded ones, of a live attempt now."""
    reading = read_run(run)
    document = look(reading)
    state = document.state
    launched: dict[int, AttemptLaunching] = {}
    told: dict[int, Milestones] = {}
    for event in reading.events:
        if isinstance(event, AttemptLaunching):
            launched[event.attempt] = event
        elif isinstance(event, Milestones):
            told[event.attempt] = event
    nothing = True
    for number, start in launched.items():
        if number not in chosen:
            continue
        last = told.get(number)
        places, now = (last.ranks, last.mono) if last is not None else ((), start.mono)
        if state.attempt is not None and number == state.attempt.attempt:
            places, now = document.places
        known = state.launcher.processes if state.launcher is not None else None
        ranks = max(known or 1, *(each.rank + 1 for each in places), 1)
        lines = milestone_lines(
            places, now, start.mono, epoch=start.t - start.mono, ranks=ranks, only=rank
        )
        if len(chosen) > 1 and lines:
            echo(f"wtrain: attempt {number}", err=True)
        nothing = nothing and not lines
        for line in lines:
            echo(line)
    if nothing:
        echo("wtrain: no milestone is known: no process has written one down", err=True)
