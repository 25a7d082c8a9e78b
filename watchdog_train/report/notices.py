"""What a person should know that is no stall: notices and slow ranks. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    Daemon,
    Difference,
    DifferenceKind,
    Ground,
    StepPlace,
    Straggler,
)
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, labelled, listed

WORDS: dict[Ground, str] = {
    "pipe": "it shares a pipe with the training",
    "socket": "it is connected to the training",
    "memory": "it shares memory with the training",
    "terminal": "the training holds its terminal",
    "gpu": "it holds a GPU context of this attempt",
    "port": "it holds a port of the training",
    "file": "it writes to a file of the training",
    "output": "it holds the training's stdout or stderr",
    "fork": "it is a copy of the training (same command line)",
    "take": "stopping.take names it",
    "own-terminal": "it has a terminal of its own",
    "clients": "it serves a client outside the training",
    "leave": "stopping.leave names it",
    "none": "it holds nothing of the training",
}


def left_words(state: State) -> tuple[str, ...]:
    """Processes that a run has left, each with the reason and the command that stops it."""
    return tuple(f"{_named(one)}; to stop it: kill {one.process.pid}" for one in state.left)


def killed_daemons(event: e.DaemonsJudged) -> str | None:
    """Who is killed with the training although it left its session."""
    killed = [_named(one) for one in event.daemons if not one.is_left]
    return f"killed with the training: {', '.join(killed)}" if killed else None


def _named(one: Daemon) -> str:
    what = f" ({clean(one.hold.what, 120)})" if one.hold.what else ""
    command = clean(one.command, 120) or "?"
    return f"{command} (pid {one.process.pid}): {WORDS[one.hold.ground]}{what}"


MOST_ROWS = 4


_PLACES: dict[StepPlace, str] = {
    "batch": "has its batch",
    "backward": "has its batch in time, and begins the backward pass",
    "backward-end": "begins the backward pass in time, and finishes it",
}
_PHRASES: dict[DifferenceKind, str] = {
    "gpu-shared": "the GPU is shared with {who}",
    "gpu-clock": "the GPU's clock is at {now} instead of {usual}{by}",
    "gpu-held": "the GPU is held down by {who}",
    "gpu-util": "the GPU is used {now} of the time instead of {usual}: it waits for the host",
    "disk": "it is in the kernel (state D) in {now} of the samples instead of {usual}",
    "cpu-line": "it waits for a CPU {now} of the time instead of {usual}{busy}",
    "computes": "it uses {now} of a CPU instead of {usual}",
    "io": "it reads and writes {now} instead of {usual}",
}


def notice_rows(state: State) -> list[tuple[str, str]]:
    """Label and words: what was noticed about the present attempt."""
    left = [("Left", text) for text in left_words(state)]
    if state.finished:
        return left
    kinds = (state.noticed, state.warned, state.shared)
    said = [why_text(one.why) for kind in kinds for one in kind[-MOST_ROWS:]]
    if state.gpu_held is not None:
        said.append(why_text(state.gpu_held.why))
    rows = labelled("Notice", said)
    if state.straggler is not None:
        rows.append(("Straggler", straggler_words(state.straggler)))
    return rows + left


def notices_object(state: State) -> list[dict[str, Any]]:
    """The same for a program."""
    found: list[dict[str, Any]] = [
        {"kind": notice.kind, "pids": list(notice.pids), "why": notice.why}
        for notice in state.noticed
    ]
    found += [{"kind": warned.kind, "pids": [], "why": warned.why} for warned in state.warned]
    found += [
        {"kind": "checkpoints", "pids": [shared.pid], "why": shared.why} for shared in state.shared
    ]
    held = state.gpu_held
    if held is not None:
        pids = [holder.pid for holder in (*held.ours, *held.others)]
        found.append({"kind": "gpu-memory", "pids": pids, "why": held.why})
    return found


def straggler_object(state: State) -> dict[str, Any] | None:
    """None: no rank is known to come last in most steps."""
    lags = state.straggler
    if lags is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(lags)
    differs = [{**msgspec.to_builtins(one), "words": difference_words(one)} for one in lags.differs]
    return {**found, "differs": differs, "why": straggler_words(lags)}


def straggler_words(lags: Straggler | None) -> str:
    """Who is late, what that costs, and what is different about it."""
    if lags is None:
        return "no rank comes last in most steps any more"
    why = "; ".join(map(difference_words, lags.differs)) or "CPU, I/O and GPU show no reason"
    return (
        f"rank {lags.rank} (pid {lags.pid}) {_PLACES[lags.place]} {lags.behind_s:.2g} s after the "
        f"others, {100 * lags.lost:.0f} % of each step "
        f"({100 * lags.share:.0f} % of what late ranks cost): {why}"
    )


def difference_words(difference: Difference) -> str:
    """One thing that is different."""
    now, usual = (
        "unknown"
        if value is None
        else f"{value / 1e6:.0f} MB/s"
        if difference.kind == "io"
        else f"{100 * value:.0f} %"
        for value in (difference.now, difference.usual)
    )
    who = listed([clean(name, 120) for name in difference.who])
    return _PHRASES[difference.kind].format(
        now=now,
        usual=usual,
        who=who,
        by=f" ({who})" if who else "",
        busy=f" (the CPUs are used by {who})" if who else "",
    )
