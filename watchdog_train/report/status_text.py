"""The screens of `wtrain status` and `wtrain ps`, in the manner of systemctl. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Member, RankStatus
from watchdog_train.report import words
from watchdog_train.report.document import Document, machines_now
from watchdog_train.report.facts import caught_sentence, run_again
from watchdog_train.report.notices import machine_cells, notice_rows
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.summary import next_words, progress_line
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import PLAIN, Paint, Style, clean, duration

LABEL_COLUMNS = 11
MAX_RANKS = 8
MAX_MACHINES = 8
MAX_PROCESSES = 10
MIN_PROCESSES = 3
MAX_LOG_LINES = 5
MAX_PLACES = 2
MAX_HOOKS = 4
MAX_ROW_LINES = 3
SCREEN_LINES = 23
"""One less than a small terminal has, for the prompt."""

Rows = list[tuple[str, str]]


def status_text(document: Document, *, paint: Paint = PLAIN, width: int | None = 80) -> str:
    """The screen, without a newline at its end.

    Args:
        document: the run.
        paint: colours, or none.
        width: columns of the terminal; None: lines are not cut.
    """
    state, live = document.state, document.live
    above = [
        ("State", _state_line(document, paint)),
        *words.labelled("", standing(document, paint).advice),
        ("Job", _task_words(state)),
        *_machine_rows(document, paint),
        ("Attempt", _attempt_line(state)),
        ("Progress", _progress_line(document)),
        *notice_rows(state),
        *_rank_rows(document, paint),
        *_place_rows(document, paint),
        ("Resume", why_text(state.resume_way) if state.resume_way and not state.finished else ""),
        ("Checkpoint", _checkpoint_line(document)),
        ("Settings", _settings_line(state)),
        *_stall_rows(document, paint),
        ("Saving", _saving_line(document)),
    ]
    below = [
        ("Files", words.short_path(state.run_dir, state.cwd)),
        *[("Problem", paint(clean(problem), "warn")) for problem in live.problems],
    ]
    head = [_title(document, paint), *_lines(above, width)]
    foot = _lines(below, width)
    tail = [clean(line, 400) for line in live.log_tail if clean(line)][-MAX_LOG_LINES:]
    room = SCREEN_LINES - len(head) - len(foot) - (len(tail) + 1 if tail else 0)
    tree = process_tree(document, limit=max(MIN_PROCESSES, min(MAX_PROCESSES, room)))
    lines = [*head, *_lines(words.labelled("Processes", tree), width), *foot]
    left = SCREEN_LINES - len(lines) - 1
    if tail and left > 0:
        lines += ["", *[paint(line, "dim") for line in tail[-left:]]]
    return "\n".join(words.cut(line, width) for line in lines)


def _lines(rows: Rows, width: int | None) -> list[str]:
    """Each label and its text, wrapped below itself to a few lines at most."""
    indent, found = LABEL_COLUMNS + 2, []
    for label, text in rows:
        parts = words.wrap(text, None if width is None else max(20, width - indent))
        if len(parts) > MAX_ROW_LINES:
            parts = (*parts[: MAX_ROW_LINES - 1], " ".join(parts[MAX_ROW_LINES - 1 :]))
        head = f"{label:>{LABEL_COLUMNS}}{': ' if label else '  '}"
        found += [f"{' ' * indent if i else head}{part}" for i, part in enumerate(parts) if text]
    return found


def process_tree(document: Document, *, limit: int) -> list[str]:
    """Recorded members, children below their parent; one whose parent is dead is a root."""
    state, live = document.state, document.live
    if state.finished:
        return []
    here = state.hosts_here
    members = [
        member
        for member in state.members
        if not live.here or (member.host in here and member.pid in live.states)
    ]
    children: dict[tuple[str, int] | None, list[Member]] = {}
    known = {(member.host, member.pid) for member in members}
    for member in members:
        parent = (member.host, member.ppid)
        is_root = parent not in known or member.ppid == member.pid
        children.setdefault(None if is_root else parent, []).append(member)
    lines: list[str] = []
    # Not recursive: a chain of a thousand parents would exhaust the stack.
    waiting_ones = [(0, member) for member in reversed(children.get(None, []))]
    while waiting_ones and len(lines) <= limit:
        depth, member = waiting_ones.pop()
        lines.append("  " * depth + _process(member, document))
        below = children.get((member.host, member.pid), [])
        waiting_ones += [(depth + 1, child) for child in reversed(below)]
    if len(members) > limit:
        lines = [*lines[: limit - 1], f"… {len(members) - limit + 1} more"]
    return lines


def _process(member: Member, document: Document) -> str:
    live = document.live
    number = {"rank": member.rank, "worker": member.worker}.get(member.role)
    role = member.role if number is None else f"{member.role} {number}"
    if member.role == "worker" and member.rank is not None:
        role += f" of rank {member.rank}"
    name = clean(member.name, 32) if member.name != member.role else ""
    state = words.state_word(live.states.get(member.pid)) if live.here else "state unknown"
    shown = f"{member.pid} {role}" if role != "other" else f"{member.pid}"
    return f"{f'{shown} {name}'.strip()}, {state}"


class Standing(NamedTuple):
    word: str
    style: Style
    advice: tuple[str, ...] = ()


def standing(document: Document, paint: Paint = PLAIN) -> Standing:
    state, live = document.state, document.live
    if state.finished:
        good: Style = "warn" if state.warning else "good"
        style = {"succeeded": good, "stopped": "warn"}.get(state.outcome or "", "bad")
        word = (state.outcome or "finished").replace("_", " ")
        if style != "bad" or not state.attempts:
            return Standing(word, style)
        return Standing(word, style, (f"to continue: {paint(run_again(state), 'strong')}",))
    if live.is_copy:
        return Standing("copy", "warn")
    if not live.here:
        owner = f"the run belongs to {clean(state.host, 100)}; ask there"
        return Standing("on another machine", "warn", (owner,))
    alive, pid = document.training_alive, state.supervisor.pid if state.supervisor else "?"
    what = "the training is alive" if alive else "no process of the training is left"
    if live.supervisor_alive is False:
        dead = f"the supervisor (pid {pid}) is dead; {what}; the last recorded state is below"
        adopt = paint(f"wtrain adopt {clean(state.run_id, 100)}", "strong")
        word = "unwatched" if alive else "dead"
        return Standing(word, "bad", (dead, f"to continue: {adopt}"))
    if live.supervisor_alive is None:
        return Standing("unknown", "warn")
    if live.blind_s is not None:
        silent = f"has not answered for {duration(live.blind_s)}: it may be stopped"
        go = f"the supervisor (pid {pid}) {silent}; {what}; to continue it: kill -CONT {pid}"
        return Standing("blind", "bad", (go,))
    if state.state != "running":
        return Standing("starting" if state.state == "idle" else state.state, "warn")
    if state.muted:
        return Standing("stalled, reported only", "bad")
    if state.suspicion is not None:
        return Standing("waiting" if state.look is not None else "suspected", "warn")
    return Standing("running", "good")


def _title(document: Document, paint: Paint) -> str:
    state = document.state
    run = f"{paint('●', standing(document).style)} {paint(clean(state.run_id, 100), 'strong')}"
    return f"{run} - {words.command_title(state.argv)}"


def _state_line(document: Document, paint: Paint) -> str:
    state, live = document.state, document.live
    word, style, _ = standing(document)
    parts = [paint(word, style)]
    if state.finished:
        if state.updated_at is not None:
            parts[0] += f" at {words.clock_time(state.updated_at, now=live.at)}"
            if state.started_at is not None:
                parts.append(f"ran {duration(state.updated_at - state.started_at)}")
        parts.append(f"exit code {state.exit_code}")
        if state.outcome != "succeeded" and state.why:
            parts.append(why_text(state.why))
        if state.warning:
            parts.append(paint(why_text(state.warning), "warn"))
        return "; ".join(parts)
    if state.started_at is not None:
        since = words.clock_time(state.started_at, now=live.at)
        parts[0] += f" since {since}" if word == "running" else f"; run began {since}"
        parts.append(duration(live.at - state.started_at))
    if live.mono is not None:
        parts.append(waiting(state, live.mono) or "")
    if state.gpu_held is not None:
        parts.append("waits for GPU memory")
    elif state.state == "backoff" and state.backoff_until is not None and live.mono is not None:
        parts.append(f"next {next_words(state)} in {duration(state.backoff_until - live.mono)}")
    if state.kill is not None:
        stall = state.last_stall
        known = stall is not None and stall.verdict == state.kill.why
        named = f"stall {clean(stall.id, 40)}" if stall and known else ""
        parts.append(named or why_text(state.kill.why))
    return "; ".join(filter(None, parts))


def _task_words(state: State) -> str:
    task = state.task
    if task is None:
        return ""
    how = "follows task 0" if task.task else "leads the others"
    return f"{clean(task.words, 120)}, {how}"


def _attempt_line(state: State) -> str:
    attempt = state.attempt
    if attempt is None:
        return "none yet"
    parts = [str(attempt.attempt)]
    used = attempt.plan.checkpoint
    if used is not None:
        step = f"step {words.number(used.step)}" if used.step is not None else "its step unknown"
        handed = attempt.plan.resume_via in ("hook", "argv", "api")
        meant = "was to resume from" if attempt.ended else "to resume from"
        meant = meant if handed else "its script decides; newest checkpoint:"
        told = {"verified": "resumed from", "contradicted": "did not resume from"}
        how = told.get(attempt.resume or "", meant)
        parts.append(f"{how} {words.last_part(used.path)} ({step})")
        if attempt.resume == "not-confirmed":
            parts.append("resume not confirmed")
    elif attempt.attempt > 1:
        parts.append("from the beginning")
    if state.restarts:
        parts.append(words.count(state.restarts, "restart"))
    if state.report_only and not state.finished:
        parts.append("report only")
    elif state.max_restarts is not None and not state.finished:
        left = max(0, state.max_restarts - state.restarts_since_progress)
        noun = "" if state.restarts else " restarts"
        parts.append(f"{left} of {state.max_restarts}{noun} left")
    return ", ".join(parts)


def _progress_line(document: Document) -> str:
    state, progress = document.state, document.progress
    if not document.measured:
        # A recorded pace says nothing about now.
        progress = msgspec.structs.replace(progress, eta_s=None, steps_s=None, samples_s=None)
    text = progress_line(progress)
    if text is None:
        return "no step seen" + ("" if state.finished else " yet")
    recorded = "" if state.finished or document.measured else _recorded(document)
    return text + recorded


def _recorded(document: Document, mono: float | None = None) -> str:
    """The age of a recorded number; by default one of its progress."""
    mono = document.state.progress_mono if mono is None else mono
    if document.live.mono is None or not mono or document.state.finished:
        return ", as recorded last"
    return f", as recorded {duration(document.live.mono - mono)} ago"


def _machine_rows(document: Document, paint: Paint) -> Rows:
    machines = sorted(machines_now(document.state), key=lambda one: not one.unknown)
    rows = []
    for one in machines[:MAX_MACHINES]:
        *cells, word = machine_cells(one, now=document.live.at)
        rows.append((*cells, paint(word, "warn") if one.unknown else word))
    return words.labelled("Machines", [*words.columns(rows), *_more(machines, rows, "machines")])


def _more(items: Sequence[object], shown: Sequence[object], noun: str) -> list[str]:
    left = len(items) - len(shown)
    return [f"… and {left} more {noun}"] if left > 0 else []


def _rank_rows(document: Document, paint: Paint) -> Rows:
    state, attempt = document.state, document.state.attempt
    if state.finished:
        return []
    ranks = document.ranks
    if not ranks:
        running = state.state == "running" and document.live.supervisor_alive
        if running and attempt is not None and attempt.first_beat_s is None:
            return [("Ranks", "no heartbeat yet: only output and activity are known")]
    shown = [_rank_line(rank, document, paint) for rank in ranks[:MAX_RANKS]]
    return words.labelled("Rank", [*shown, *_more(ranks, shown, "ranks")])


def _rank_line(rank: RankStatus, document: Document, paint: Paint) -> str:
    measured = document.live.ranks or ()
    parts = [f"{rank.rank}  {rank.phase:<10}"]
    if rank.step is not None:
        parts.append(f"step {words.number(rank.step)}")
    if rank not in measured:
        parts.append("as recorded last" if measured else "beat not measured now")
    elif rank.beat_age_s is None:
        parts.append("no beat yet")
    else:
        parts.append(f"beat {duration(rank.beat_age_s)} ago")
    if rank.workers:
        parts.append(words.count(len(rank.workers), "worker"))
    if rank.state in ("T", "t", "D", "Z"):
        parts.append(paint(words.state_word(rank.state), "warn"))
    return "  ".join(parts)


def _place_rows(document: Document, paint: Paint) -> Rows:
    """Milestones that ranks are inside of, and hooks that are not armed."""
    state, live = document.state, document.live
    rows = []
    if not state.finished and live.places is not None and live.mono is not None:
        rows = words.labelled("Inside", place_sentences(live.places, live.mono)[:MAX_PLACES])
    hooks = [f"{clean(hook.hook, 60)} ({why_text(hook.why)})" for hook in state.hooks[:MAX_HOOKS]]
    if hooks:
        text = f"not armed: {words.listed(hooks)}; weaker signals are used instead"
        rows.append(("Hooks", paint(text, "warn")))
    return rows


def _checkpoint_line(document: Document) -> str:
    state, live, found = document.state, document.live, document.checkpoint
    if found is None:
        return "" if state.finished else "none seen yet"
    parts = [words.last_part(found.path)]
    if found.step is not None and str(found.step) not in parts[0]:
        parts.append(f"step {words.number(found.step)}")
    if live.save is not None:
        parts.append(f"saved {duration(live.at - live.save.t)} ago, not checked yet")
    elif state.attempt is not None:
        parts.append(f"which attempt {state.attempt.attempt} started from")
    return ", ".join(parts)


def _settings_line(state: State) -> str:
    attempt = state.attempt
    if attempt is None:
        return ""
    effects = dict.fromkeys(attempt.reported, "NOT in effect")
    effects |= dict.fromkeys(attempt.taken, "in effect")
    uses = attempt.plan.remedies
    return ", ".join(f"{clean(use.word, 60)} ({effects.get(use.id, 'set')})" for use in uses)


def _stall_rows(document: Document, paint: Paint) -> Rows:
    stall = document.state.last_stall
    if stall is None:
        return []
    silence = f"{why_text(stall.verdict, brief=True)}; " if stall.why == "stall" else ""
    what = caught_sentence(stall.crash, stall.explanation) or f"{silence}cause unknown"
    at = words.clock_time(stall.at, now=document.live.at)
    text = f"{clean(stall.id, 40)} at {at}, attempt {stall.attempt}: {what}"
    where = words.short_path(stall.dir or "", document.state.cwd)
    return [("Crash" if stall.why == "crash" else "Stall", text), ("", paint(where, "dim"))]


def _saving_line(document: Document) -> str:
    state, live = document.state, document.live
    if state.finished or state.attempt is None:
        return ""
    if state.save_requested > state.save_proven and document.can_save:
        taken = state.save_answered >= state.save_requested
        answer = "the training has taken the request" if taken else "no answer yet"
        return f"asked to save, {answer}, no finished save seen since"
    if state.save_requested > state.save_proven:
        return "this script cannot be asked to save"
    if live.can_save is False and document.progress.step is not None:
        stops = "; wtrain stop asks its loop to end" if live.can_stop else ""
        return f"this script cannot be asked to save{stops}"
    return ""


HEADER = ("RUN", "STATE", "TIME", "ATTEMPT", "STEP", "COMMAND")


def runs_text(runs: Sequence[Document], *, paint: Paint = PLAIN, width: int | None = 80) -> str:
    """The table of `wtrain ps`, without a newline at its end; empty without runs."""
    leads = {task.job for run in runs if (task := run.state.task) is not None and not task.task}
    runs = _grouped([run for run in runs if led_by(run.state) not in leads])
    if not runs:
        return ""
    rows = [HEADER, *(_runs_row(run, paint) for run in runs)]
    if any(run.state.task is not None for run in runs):
        cells = ["TASK", *(_task_cell(run.state) for run in runs)]
        rows = [(row[0], cell, *row[1:]) for row, cell in zip(rows, cells, strict=True)]
    head, *told = words.columns(rows)
    lines = [paint(head, "dim")]
    for run, line in zip(runs, told, strict=True):
        lines.append(line)
        if run.live.supervisor_alive and run.live.mono is not None:
            awaited = waiting(run.state, run.live.mono) or ""
            lines += [f"  {each}" for each in words.wrap(awaited, width and width - 2) if awaited]
    return "\n".join(words.cut(line, width) for line in lines)


def led_by(state: State) -> str | None:
    """The job in which this run is an agent of the leader; None: it is no agent."""
    task = state.task
    return task.job if task is not None and task.task else None


def _grouped(runs: Sequence[Document]) -> list[Document]:
    """Runs of one job side by side, by task, where the first of them stood."""
    tasks = [run.state.task for run in runs]
    jobs = [str(at) if task is None else task.job for at, task in enumerate(tasks)]
    places = [
        (jobs.index(job), task.task if task else 0) for job, task in zip(jobs, tasks, strict=True)
    ]
    return [runs[at] for at in sorted(range(len(runs)), key=places.__getitem__)]


def _task_cell(state: State) -> str:
    """`2/4 slurm:1234.0`; "-" for a run that is no task of a job."""
    task = state.task
    if task is None:
        return "-"
    return f"{task.task}/{task.tasks} {words.cut(clean(task.job, 60), 24)}"


def _runs_row(run: Document, paint: Paint) -> tuple[str, ...]:
    state, progress = run.state, run.progress
    ended = state.updated_at if state.finished and state.updated_at is not None else run.live.at
    ran = duration(ended - state.started_at) if state.started_at is not None else "-"
    step = "-" if progress.step is None else words.number(progress.step)
    if progress.percent is not None:
        step += f" ({words.percent_text(progress.percent)})"
    attempt = str(state.attempt.attempt) if state.attempt is not None else "-"
    word, style, _ = standing(run)
    word = paint(f"agent, {word}" if led_by(state) is not None else word, style)
    return (clean(state.run_id, 80), word, ran, attempt, step, words.command_title(state.argv))


def milestones_text(document: Document, *, paint: Paint = PLAIN) -> str:
    """The screen of `wtrain status --milestones`; nothing is cut."""
    state, (places, now) = document.state, document.places
    title = _title(document, paint)
    if state.attempt is None:
        return f"{title}\nno milestone is known: no attempt was launched"
    if not places:
        return f"{title}\nno milestone is known: no process of this attempt has recorded one"
    recorded = "" if document.live.places is not None else _recorded(document, state.places_mono)
    return "\n".join(
        [
            title,
            f"attempt {state.attempt.attempt}, times since its launch{recorded}",
            *[paint(sentence, "warn") for sentence in place_sentences(places, now)],
            "",
            *place_lines(places, now, state.attempt.launching_mono),
        ]
    )
