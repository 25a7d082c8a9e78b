"""What a person should know that is no stall: notices, slow ranks, machines, what is left. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Daemon, Ground, StepPlace, Straggler
from watchdog_train.report.document import MachineNow
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, labelled, ranks_text

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
    """Processes left running, each with the reason and the command that stops it."""
    return tuple(f"{_named(one)}; to stop it: kill {one.process.pid}" for one in state.left)


def killed_daemons(event: e.DaemonsJudged) -> tuple[str, ...]:
    """Processes killed with the training although they left its session."""
    killed = [_named(one) for one in event.daemons if not one.is_left]
    return (f"killed with the training: {', '.join(killed)}",) if killed else ()


def _named(one: Daemon) -> str:
    what = f" ({clean(one.hold.what, 120)})" if one.hold.what else ""
    command = clean(one.command, 120) or "?"
    return f"{command} (pid {one.process.pid}): {WORDS[one.hold.ground]}{what}"


def guilty_words(state: State) -> tuple[str, ...]:
    """Machines to avoid in the next attempt of the job, each with the reason."""
    named = state.guilty if state.finished else ()
    return tuple(f"{clean(one.host, 64)}: {why_text(one.why)}" for one in named)


_MACHINE = {"silent": "not heard", "lost": "lost, not heard", "not-come": "not heard yet"}


def machine_cells(machine: MachineNow, *, now: float | None) -> tuple[str, str, str, str]:
    """Name, host name, ranks and state."""
    word = _MACHINE.get(machine.state, machine.state)
    if machine.since is not None:
        word += f" since {clock_time(machine.since, now=now)}"
    on = ranks_text(machine.ranks) if machine.ranks else "no rank seen"
    return machine.name, clean(machine.hostname, 64), on, word


MOST_ROWS = 4


_PLACES: dict[StepPlace, str] = {
    "batch": "has its batch",
    "backward": "has its batch in time, and begins the backward pass",
    "backward-end": "begins the backward pass in time, and finishes it",
}


def notice_rows(state: State) -> list[tuple[str, str]]:
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


def straggler_words(lags: Straggler | None) -> str:
    """Who is late, and what that costs."""
    if lags is None:
        return "no rank comes last in most steps any more"
    return (
        f"rank {lags.rank} (pid {lags.pid}) {_PLACES[lags.place]} {lags.behind_s:.2g} s after the "
        f"others, {100 * lags.lost:.0f} % of each step "
        f"({100 * lags.share:.0f} % of what late ranks cost)"
    )
