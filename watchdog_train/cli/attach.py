"""`wtrain attach`: show a run as if it had been started in this terminal.

Must not signal or stop the run, nor send it a request: Ctrl-C here concerns only this command.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from watchdog_train.cli.event_watch import EventWatch
from watchdog_train.cli.log_files import streams_of, tail
from watchdog_train.cli.options import of_run
from watchdog_train.cli.reading import RunReading, look, newest_save
from watchdog_train.core.events import AnyEvent
from watchdog_train.core.fold.state import State
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE
from watchdog_train.remedies.catalogue import script_lines
from watchdog_train.report.narrative import narrate
from watchdog_train.report.summary import PREFIX, closing_lines, progress_line
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.display import Display

POLL_S = 0.1
STATUS_EVERY_S = 2.0
LAST_LINES = 20
DRAIN_S = 2.0
EXIT_NOBODY_WATCHES = 4
"""As `wtrain status`: the supervisor is dead, the training may be alive."""
STREAMS = ("output", "stdout", "stderr")

Until = Callable[[State], bool]


@click.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=LAST_LINES,
    help="Begin with the last N lines of its output.",
)
@click.option("--raw", is_flag=True, help="Pass on control sequences that can change the terminal.")
@of_run
def attach(*, run_ref: str | None, lines: int, raw: bool, runs_dir: Path | None) -> None:
    """Show the output of RUN and the messages of wtrain until it ends; nothing is sent to RUN.

    Colours are kept, other control sequences are not. Ctrl-C detaches; the training continues.
    Exit code: that of the run when it ends, 0 after Ctrl-C, 4 when its supervisor is dead.
    """
    run = resolve(run_ref, runs_dir)
    run.refuse_copy()
    sys.exit(Attached(run, raw=raw).follow(lines))


def until_first_step(run: RunDirectory) -> int:
    """Follow the run until its first step, or until it is known to have no heartbeat.

    For `wtrain run -d --until-first-step`: most hangs come before the first step.
    """

    def has_stepped(state: State) -> bool:
        attempt = state.attempt
        stepped = attempt is not None and attempt.first_step_s is not None
        return stepped or "no-heartbeat" in state.notices

    return Attached(run).follow(0, has_stepped)


class Attached:
    def __init__(self, run: RunDirectory, *, raw: bool = False) -> None:
        self._run = run
        self._watch = EventWatch(run)
        self._display = Display(raw=raw)
        self._shown = 0
        self._status_at = 0.0

    def follow(self, lines: int, until: Until | None = None) -> int:
        """Show it until it ends, `until` is true, its supervisor is dead, or Ctrl-C."""
        try:
            if not self._watch.state.finished:
                self._say("attached", "Ctrl-C detaches, the training continues")
            self._begin(lines)
            if until is not None:
                self._tell(self._watch.before)
            while not self._watch.state.finished:
                self._tell(self._watch.new())
                if until is not None and until(self._watch.state):
                    return 0
                if self._watch.lost:
                    then = f"wtrain adopt {self._run.run_id}"
                    self._say("its supervisor is dead", then)
                    return EXIT_NOBODY_WATCHES
                self._display.pump()
                self._show_status()
                if self._display.is_left:
                    return 0
                time.sleep(POLL_S)
            self._display.drain(time.monotonic() + DRAIN_S)
            return self._ended()
        except KeyboardInterrupt:
            self._display.key_pressed()
            self._say("detached, the training continues", f"wtrain attach {self._run.run_id}")
            return 0
        finally:
            self._display.drain(time.monotonic() + DRAIN_S)
            self._display.close()

    def _say(self, what: str, then: str) -> None:
        self._display.say(f"wtrain: {self._run.run_id}: {what}; {then}")

    def _begin(self, lines: int) -> None:
        attempt = self._watch.state.attempt
        if attempt is None:
            return
        folder = self._run.attempt(attempt.attempt)
        for stream in streams_of(folder):
            self._display.show(stream.name, tail(stream.path, lines))
        self._show(attempt.attempt, from_end=True)

    def _show(self, number: int, *, from_end: bool) -> None:
        self._shown = number
        folder = self._run.attempt(number)
        streams = {name: folder / f"{name}.log" for name in STREAMS}
        self._display.follow(streams, from_end=from_end)
        if from_end:
            self._display.pump()

    def _tell(self, happened: Iterable[tuple[AnyEvent, State]]) -> None:
        """Print the lines of events, each after the output that came before it."""
        for event, state in happened:
            attempt = state.attempt
            if attempt is not None and attempt.attempt != self._shown:
                self._display.pump()
                self._show(attempt.attempt, from_end=False)
            for line in narrate(event, state):
                self._display.say(line)

    def _show_status(self) -> None:
        if not self._display.has_status_line:
            return
        now = time.monotonic()
        if now - self._status_at >= STATUS_EVERY_S:
            self._status_at = now
            self._display.show_status(_status(self._run, self._watch.state))

    def _ended(self) -> int:
        state = self._watch.state
        report = self._run.path / "report.html"
        known = str(report) if report.is_file() else None
        for line in closing_lines(
            state, script_lines(), report=known, newest_save=newest_save(self._run, state)
        ):
            self._display.say(line)
        return EXIT_RETRY_ELSEWHERE if state.exit_code is None else state.exit_code


def _status(run: RunDirectory, state: State) -> str | None:
    """The line at the bottom: progress by the slots now."""
    if state.state != "running":
        return None
    document = look(RunReading(run=run, events=(), state=state, problems=()))
    line = progress_line(document.progress)
    return f"{PREFIX}{line}" if line is not None else None
