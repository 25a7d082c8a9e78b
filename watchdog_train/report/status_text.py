"""The screens of `wtrain status` and `wtrain ps`, in the manner of systemctl. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.core.model import Member, RankStatus
from watchdog_train.report import job_text, words
from watchdog_train.report.facts import caught_sentence, run_again
from watchdog_train.report.job_text import grouped, led_by, task_cell
from watchdog_train.report.notices import notice_rows
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.status import (
    Live,
    newest_checkpoint,
    places_now,
    progress_now,
    ranks_now,
)
from watchdog_train.report.summary import next_words, progress_line
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import PLAIN, Paint, Style, clean, duration


def process_tree(state: State, live: Live, *, limit: int) -> list[str]:
    """Recorded members as a tree; a process whose parent is dead is a root of its own."""
    if state.finished:
        return []
    here = state.hosts_here
    members = [
        member
        for member in state.members
        if not live.here or (member.host in here and member.pid in live.states)
    ]
    by_parent: dict[tuple[str, int], list[Member]] = {}
    pids = {(member.host, member.pid) for member in members}
    for member in members:
        parent = (member.host, member.ppid)
        known = parent in pids and member.ppid != member.pid
        by_parent.setdefault(parent if known else ("", 0), []).append(member)
    lines: list[str] = []
    drawn: set[tuple[str, int]] = set()

    def draw(member: Member, lead: str, branch: str) -> None:
        # The bound also keeps a chain of a thousand parents from exhausting the stack.
        who = (member.host, member.pid)
        if who in drawn or len(lines) > limit:
            return
        drawn.add(who)
        lines.append(f"{lead}{branch}{_process(member, live)}")
        children = by_parent.get(who, [])
        below = lead + {"": "", "├─": "│ ", "└─": "  "}[branch]
        for i, child in enumerate(children):
            draw(child, below, "└─" if i == len(children) - 1 else "├─")

    roots = by_parent.get(("", 0), [])
    for member in [*roots, *members]:
        draw(member, "", "")
    if len(members) > limit:
        lines = [*lines[: limit - 1], f"… {len(members) - limit + 1} more"]
    return lines


def _process(member: Member, live: Live) -> str:
    number = {"rank": member.rank, "worker": member.worker}.get(member.role)
    role = member.role if number is None else f"{member.role} {number}"
    if member.role == "worker" and member.rank is not None:
        role += f" of rank {member.rank}"
    name = clean(member.name, 32) if member.name != member.role else ""
    state = words.state_word(live.states.get(member.pid)) if live.here else "state unknown"
    shown = f"{member.pid} {role}" if role != "other" else f"{member.pid}"
    return f"{f'{shown} {name}'.strip()}, {state}"


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


def status_text(
    state: State,
    live: Live,
    *,
    paint: Paint = PLAIN,
    width: int | None = 80,
) -> str:
    """The screen, without a newline at its end.

    Args:
        state: what the event log says.
        live: what was measured now.
        paint: colours, or none.
        width: columns of the terminal; None: lines are not cut.
    """
    above = [
        ("State", _state_line(state, live, paint)),
        *words.labelled("", _go_on(state, live, paint)),
        ("Job", job_text.task_words(state)),
        *_machine_rows(state, live, paint),
        ("Attempt", _attempt_line(state)),
        ("Progress", _progress_line(state, live)),
        *notice_rows(state),
        *_rank_rows(state, live, paint),
        *_place_rows(state, live, paint),
        ("Resume", why_text(state.resume_way) if state.resume_way and not state.finished else ""),
        ("Checkpoint", _checkpoint_line(state, live)),
        ("Settings", _settings_line(state)),
        *_stall_rows(state, live, paint),
        ("Saving", _saving_line(state, live)),
    ]
    below = [
        ("Files", words.short_path(state.run_dir, state.cwd)),
        *[("Problem", paint(clean(problem), "warn")) for problem in live.problems],
    ]
    head = [_title(state, live, paint), *_lines(above, width)]
    foot = _lines(below, width)
    tail = [clean(line, 400) for line in live.log_tail if clean(line)][-MAX_LOG_LINES:]
    room = SCREEN_LINES - len(head) - len(foot) - (len(tail) + 1 if tail else 0)
    tree = process_tree(state, live, limit=max(MIN_PROCESSES, min(MAX_PROCESSES, room)))
    lines = [*head, *_lines(words.labelled("Processes", tree), width), *foot]
    left = SCREEN_LINES - len(lines) - 1
    if tail and left > 0:
        lines += ["", *[paint(line, "dim") for line in tail[-left:]]]
    return "\n".join(words.cut(line, width) for line in lines)


def _lines(rows: list[tuple[str, str]], width: int | None) -> list[str]:
    return [line for label, text in rows if text for line in _row(label, text, width)]


def headline(state: State, live: Live) -> tuple[str, Style]:
    """The state in a word or two, as `ps` shows it, and its colour."""
    if state.finished:
        outcome = {"gave_up": "gave up"}.get(state.outcome or "", state.outcome or "finished")
        if state.outcome == "succeeded":
            return outcome, "warn" if state.warning else "good"
        return outcome, "warn" if state.outcome == "stopped" else "bad"
    if live.is_copy:
        return "copy", "warn"
    if not live.here:
        return "on another machine", "warn"
    if live.supervisor_alive is False:
        return ("unwatched" if training_alive(state, live) else "dead"), "bad"
    if live.supervisor_alive is None:
        return "unknown", "warn"
    if live.blind_s is not None:
        return "blind", "bad"
    if state.state == "running" and state.muted:
        return "stalled, reported only", "bad"
    if state.state == "running" and state.suspicion is not None:
        return ("waiting" if state.look is not None else "suspected"), "warn"
    return ("starting" if state.state == "idle" else state.state), (
        "good" if state.state == "running" else "warn"
    )


def training_alive(state: State, live: Live) -> bool:
    """Whether a recorded process of training, the keeper aside, lives."""
    left = {daemon.process for daemon in state.daemons if daemon.is_left}
    return any(
        member.role != "keeper" and member.pid in live.states and live.states[member.pid] != "Z"
        for member in state.members
        if member.identity not in left
    ) or bool(live.ranks)


def _row(label: str, text: str, width: int | None) -> list[str]:
    """A label and its text, wrapped below itself to a few lines at most."""
    indent = LABEL_COLUMNS + 2
    parts = words.wrap(text, None if width is None else max(20, width - indent))
    if len(parts) > MAX_ROW_LINES:
        parts = (*parts[: MAX_ROW_LINES - 1], " ".join(parts[MAX_ROW_LINES - 1 :]))
    head = f"{label:>{LABEL_COLUMNS}}{': ' if label else '  '}"
    return [f"{' ' * indent if i else head}{part}" for i, part in enumerate(parts)]


def _title(state: State, live: Live, paint: Paint) -> str:
    _, style = headline(state, live)
    run = f"{paint('●', style)} {paint(clean(state.run_id, 100), 'strong')}"
    return f"{run} - {words.command_title(state.argv)}"


def _state_line(state: State, live: Live, paint: Paint) -> str:
    word, style = headline(state, live)
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
    awaited = waiting(state, live.mono) if live.mono is not None else None
    if awaited is not None:
        parts.append(awaited)
    if state.gpu_held is not None:
        parts.append("waits for GPU memory")
    elif state.state == "backoff" and state.backoff_until is not None and live.mono is not None:
        parts.append(f"next {next_words(state)} in {duration(state.backoff_until - live.mono)}")
    if state.kill is not None:
        stall = state.last_stall
        known = stall is not None and stall.verdict == state.kill.why
        parts.append(
            f"stall {clean(stall.id, 40)}" if stall and known else why_text(state.kill.why)
        )
    return "; ".join(parts)


def _go_on(state: State, live: Live, paint: Paint) -> list[str]:
    """What to do when the run has ended badly or its supervisor does not work."""
    if live.is_copy:
        return []
    if state.finished:
        if state.outcome not in ("gave_up", "failed") or not state.attempts:
            return []
        return [f"to continue: {paint(run_again(state), 'strong')}"]
    if not live.here:
        return [f"the run belongs to {clean(state.host, 100)}; ask there"]
    if live.supervisor_alive is not False and live.blind_s is None:
        return []
    pid = state.supervisor.pid if state.supervisor is not None else "?"
    alive = training_alive(state, live)
    what = "the training is alive" if alive else "no process of the training is left"
    if live.blind_s is not None:
        silent = f"has not answered for {duration(live.blind_s)}: it may be stopped"
        return [f"the supervisor (pid {pid}) {silent}; {what}; to continue it: kill -CONT {pid}"]
    return [
        f"the supervisor (pid {pid}) is dead; {what}; the last recorded state is below",
        f"to continue: {paint(f'wtrain adopt {clean(state.run_id, 100)}', 'strong')}",
    ]


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


def _progress_line(state: State, live: Live) -> str:
    progress = progress_now(state, live)
    measured = not state.finished and live.ranks is not None
    if not measured:
        # A recorded pace says nothing about now.
        progress = msgspec.structs.replace(progress, eta_s=None, steps_s=None, samples_s=None)
    text = progress_line(progress)
    if text is None:
        return "no step seen" + ("" if state.finished else " yet")
    if not state.finished and not measured:
        text += f", {_recorded(state, live)}"
    return text


def _recorded(state: State, live: Live) -> str:
    if live.mono is None or not state.progress_mono:
        return "as recorded last"
    return f"as recorded {duration(live.mono - state.progress_mono)} ago"


def _machine_rows(state: State, live: Live, paint: Paint) -> list[tuple[str, str]]:
    """The machines of a job, unknown ones first."""
    machines = sorted(job_text.machines_now(state), key=lambda one: not one.unknown)
    shown = machines[:MAX_MACHINES]
    rows = [job_text.machine_cells(one, now=live.at) for one in shown]
    told = words.columns(
        [
            (*cells, paint(word, "warn") if one.unknown else word)
            for one, (*cells, word) in zip(shown, rows, strict=True)
        ]
    )
    if len(machines) > len(shown):
        told.append(f"… and {len(machines) - len(shown)} more machines")
    return words.labelled("Machines", told)


def _rank_rows(state: State, live: Live, paint: Paint) -> list[tuple[str, str]]:
    if state.finished:
        return []
    ranks = ranks_now(state, live)
    if not ranks:
        attempt = state.attempt
        running = state.state == "running" and live.supervisor_alive
        if running and attempt is not None and attempt.first_beat_s is None:
            return [("Ranks", "no heartbeat yet: only output and activity are known")]
        return []
    told = [_rank_line(rank, live, paint) for rank in ranks[:MAX_RANKS]]
    if len(ranks) > MAX_RANKS:
        told.append(f"… and {len(ranks) - MAX_RANKS} more ranks")
    return words.labelled("Rank", told)


def _rank_line(rank: RankStatus, live: Live, paint: Paint) -> str:
    parts = [f"{rank.rank}  {rank.phase:<10}"]
    if rank.step is not None:
        parts.append(f"step {words.number(rank.step)}")
    if rank not in (live.ranks or ()):
        parts.append("as recorded last" if live.ranks else "beat not measured now")
    elif rank.beat_age_s is None:
        parts.append("no beat yet")
    else:
        parts.append(f"beat {duration(rank.beat_age_s)} ago")
    if rank.workers:
        parts.append(words.count(len(rank.workers), "worker"))
    if rank.state in ("T", "t", "D", "Z"):
        parts.append(paint(words.state_word(rank.state), "warn"))
    return "  ".join(parts)


def _place_rows(state: State, live: Live, paint: Paint) -> list[tuple[str, str]]:
    """Milestones that ranks are inside of, and hooks that are not armed."""
    rows = []
    if not state.finished and live.places is not None and live.mono is not None:
        rows = words.labelled("Inside", place_sentences(live.places, live.mono)[:MAX_PLACES])
    hooks = [f"{clean(hook.hook, 60)} ({why_text(hook.why)})" for hook in state.hooks[:MAX_HOOKS]]
    if hooks:
        text = f"not armed: {words.listed(hooks)}; weaker signals are used instead"
        rows.append(("Hooks", paint(text, "warn")))
    return rows


def _checkpoint_line(state: State, live: Live) -> str:
    found = newest_checkpoint(state, live)
    if found is None:
        return "" if state.finished else "none seen yet"
    parts = [words.last_part(found.path)]
    if found.step is not None and str(found.step) not in parts[0]:
        parts.append(f"step {words.number(found.step)}")
    if found.saved_at is not None:
        parts.append(f"saved {duration(live.at - found.saved_at)} ago")
    if live.checkpoint is None and state.attempt is not None:
        parts.append(f"which attempt {state.attempt.attempt} started from")
    elif not found.checked:
        parts.append("not checked yet")
    return ", ".join(parts)


def _settings_line(state: State) -> str:
    attempt = state.attempt
    if attempt is None or not attempt.plan.remedies:
        return ""
    effects = dict.fromkeys(attempt.reported, "NOT in effect")
    effects |= dict.fromkeys(attempt.taken, "in effect")
    uses = attempt.plan.remedies
    return ", ".join(f"{clean(use.word, 60)} ({effects.get(use.id, 'set')})" for use in uses)


def _stall_rows(state: State, live: Live, paint: Paint) -> list[tuple[str, str]]:
    stall = state.last_stall
    if stall is None:
        return []
    label = "Crash" if stall.why == "crash" else "Stall"
    at = words.clock_time(stall.at, now=live.at)
    text = f"{clean(stall.id, 40)} at {at}, attempt {stall.attempt}: {stall_sentence(stall)}"
    where = paint(words.short_path(stall.dir or "", state.cwd), "dim")
    return [(label, text), ("", where)]


def stall_sentence(stall: StallRecord) -> str:
    """What a bundle is about, in one sentence."""
    known = caught_sentence(stall.crash, stall.explanation)
    if known or stall.why != "stall":
        return known or "cause unknown"
    return f"{why_text(stall.verdict, brief=True)}; cause unknown"


def _saving_line(state: State, live: Live) -> str:
    if state.finished or state.attempt is None:
        return ""
    can_save = live.can_save if live.can_save is not None else state.can_be_asked_to_save
    if state.save_requested > state.save_proven:
        if can_save:
            taken = state.save_answered >= state.save_requested
            answer = "the training has taken the request" if taken else "no answer yet"
            return f"asked to save, {answer}, no finished save seen since"
        return "this script cannot be asked to save"
    if live.can_save is False and progress_now(state, live).step is not None:
        stops = "; wtrain stop asks its loop to end" if live.can_stop else ""
        return f"this script cannot be asked to save{stops}"
    return ""


HEADER = ("RUN", "STATE", "TIME", "ATTEMPT", "STEP", "COMMAND")


def runs_text(
    runs: Sequence[tuple[State, Live]], *, paint: Paint = PLAIN, width: int | None = 80
) -> str:
    """The table of `wtrain ps`, without a newline at its end; empty without runs."""
    if not runs:
        return ""
    leads = {state.task.job for state, _ in runs if state.task is not None and not state.task.task}
    runs = [row for row in runs if led_by(row[0]) not in leads]
    runs = grouped(runs, lambda row: row[0])
    rows = [HEADER, *(_runs_row(state, live, paint) for state, live in runs)]
    if any(state.task is not None for state, _ in runs):
        cells = ["TASK", *(task_cell(state) for state, _ in runs)]
        rows = [(row[0], cell, *row[1:]) for row, cell in zip(rows, cells, strict=True)]
    head, *told = words.columns(rows)
    lines = [paint(head, "dim")]
    for (state, live), line in zip(runs, told, strict=True):
        lines.append(line)
        if live.supervisor_alive and live.mono is not None:
            awaited = waiting(state, live.mono)
            lines += [f"  {awaited}"] if awaited is not None else []
    return "\n".join(words.cut(line, width) for line in lines)


def _runs_row(state: State, live: Live, paint: Paint) -> tuple[str, ...]:
    ended = state.updated_at if state.finished and state.updated_at is not None else live.at
    ran = duration(ended - state.started_at) if state.started_at is not None else "-"
    progress = progress_now(state, live)
    step = "-"
    if progress.step is not None:
        step = words.number(progress.step)
        if progress.percent is not None:
            step += f" ({words.percent_text(progress.percent)})"
    attempt = str(state.attempt.attempt) if state.attempt is not None else "-"
    word, style = headline(state, live)
    word = paint(f"agent, {word}" if led_by(state) is not None else word, style)
    return (clean(state.run_id, 80), word, ran, attempt, step, words.command_title(state.argv))


def milestones_text(state: State, live: Live, *, paint: Paint = PLAIN) -> str:
    """The screen of `wtrain status --milestones`; nothing is cut."""
    title = _title(state, live, paint)
    places, now, origin = places_now(state, live)
    if state.attempt is None or origin is None:
        return f"{title}\nno milestone is known: no attempt was launched"
    if not places:
        return f"{title}\nno milestone is known: no process of this attempt has recorded one"
    recorded = "" if live.places is not None else ", as recorded last"
    if recorded and live.mono is not None and not state.finished:
        recorded = f", as recorded {duration(live.mono - state.places_mono)} ago"
    return "\n".join(
        [
            title,
            f"attempt {state.attempt.attempt}, times since its launch{recorded}",
            *[paint(sentence, "warn") for sentence in place_sentences(places, now)],
            "",
            *place_lines(places, now, origin),
        ]
    )
