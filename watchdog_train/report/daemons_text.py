"""Processes outside the training's session in words: whose they are held to be, and why. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Daemon, Ground
from watchdog_train.report.words import clean

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
    "clients": "it serves somebody outside the training",
    "leave": "stopping.leave names it",
    "none": "it holds nothing of the training",
}


def left_words(state: State) -> tuple[str, ...]:
    """What a run has left running, each with the reason and how to end it."""
    return tuple(f"{_named(one)}; to end it: kill {one.process.pid}" for one in state.left)


def notable(event: e.DaemonsJudged) -> str | None:
    """Who is killed with the training although it left its session."""
    killed = [_named(one) for one in event.daemons if not one.is_left]
    return f"killed with the training: {', '.join(killed)}" if killed else None


def _named(one: Daemon) -> str:
    what = f" ({clean(one.hold.what, 120)})" if one.hold.what else ""
    command = clean(one.command, 120) or "?"
    return f"{command} (pid {one.process.pid}): {WORDS[one.hold.ground]}{what}"
