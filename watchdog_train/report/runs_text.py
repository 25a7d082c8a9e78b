"""The table of `wtrain ps`: one line a run, the tasks of a job side by side. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_train.core.fold.state import State
from watchdog_train.report import words
from watchdog_train.report.job_text import grouped, led_by, task_cell
from watchdog_train.report.live import Live
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.status_json import progress_now
from watchdog_train.report.status_text import headline
from watchdog_train.report.words import PLAIN, Paint, clean, duration

HEADER = ("RUN", "STATE", "TIME", "ATTEMPT", "STEP", "COMMAND")


def runs_text(
    runs: Sequence[tuple[State, Live]], *, paint: Paint = PLAIN, width: int | None = 80
) -> str:
    """The table, without a newline at its end; empty without runs."""
    if not runs:
        return ""
    leads = {state.task.job for state, _ in runs if state.task is not None and not state.task.task}
    runs = [row for row in runs if led_by(row[0]) not in leads]
    runs = grouped(runs, lambda row: row[0])
    rows = [HEADER, *(_row(state, live) for state, live in runs)]
    if any(state.task is not None for state, _ in runs):
        cells = ["TASK", *(task_cell(state) for state, _ in runs)]
        rows = [(row[0], cell, *row[1:]) for row, cell in zip(rows, cells, strict=True)]
    state_at = rows[0].index("STATE")
    wide = [max(words.display_width(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for i, row in enumerate(rows):
        cells = [words.pad(cell, size) for cell, size in zip(row[:-1], wide, strict=True)]
        if i == 0:
            cells = [paint(cell, "dim") for cell in cells]
        else:
            cells[state_at] = paint(cells[state_at], headline(*runs[i - 1])[1])
        last = paint(row[-1], "dim") if i == 0 else row[-1]
        lines.append(words.cut("  ".join([*cells, last]), width))
        awaited = _awaited(*runs[i - 1]) if i else None
        if awaited is not None:
            lines.append(words.cut(f"  {awaited}", width))
    return "\n".join(lines)


def _awaited(state: State, live: Live) -> str | None:
    watched = live.supervisor_alive and live.mono is not None
    return waiting(state, live.mono or 0.0) if watched else None


def _row(state: State, live: Live) -> tuple[str, ...]:
    ended = state.updated_at if state.finished and state.updated_at is not None else live.at
    ran = duration(ended - state.started_at) if state.started_at is not None else "-"
    progress = progress_now(state, live)
    step = "-"
    if progress.step is not None:
        step = words.number(progress.step)
        if progress.percent is not None:
            step += f" ({words.percent_text(progress.percent)})"
    attempt = str(state.attempt.attempt) if state.attempt is not None else "-"
    word = headline(state, live)[0]
    if led_by(state) is not None:
        word = f"agent, {word}"
    return (clean(state.run_id, 80), word, ran, attempt, step, words.command_title(state.argv))
