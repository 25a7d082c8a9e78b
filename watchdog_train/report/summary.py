"""The lines that open and close a run on the terminal, and a line of progress. Pure."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from watchdog_train.core.actions import Observation
from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress, SaveRecord, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.starting.launchers import SHARED_STORE_OFF, Launcher
from watchdog_train.report import facts, words
from watchdog_train.report.explanation_text import crash_words, sentences
from watchdog_train.report.notices import guilty_words, left_words
from watchdog_train.report.patience_text import until_words
from watchdog_train.report.patience_text import what as awaited
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, cut_bytes, duration

PREFIX = "wtrain: "


def prefixed(*lines: str) -> tuple[str, ...]:
    """The lines with the prefix that separates them from the output of the training."""
    return tuple(f"{PREFIX}{line}" for line in lines)


def opening_lines(
    *, state: State, policy: Policy, watching_pid: int, files: str
) -> tuple[str, ...]:
    """The watched command, possible actions, and how to ask or stop.

    Args:
        state: after the first attempt_launched event.
        policy: the settings of the run.
        watching_pid: the root process of training.
        files: the run directory as the user would type it, such as `wtrain-runs/latest`.
    """
    run = f"run {clean(state.run_id, 100)}, watching pid {watching_pid}"
    return prefixed(
        f"{run}, files in {words.short_path(files, state.cwd)}",
        _on_a_hang(policy),
        *((f"Resume: {why_text(state.resume_way)}",) if state.resume_way else ()),
        *_own_restarts(state.launcher),
        "wtrain status | Ctrl-C stops, twice kills",
    )


def _own_restarts(launcher: Launcher | None) -> tuple[str, ...]:
    """What a launcher's own --max-restarts means: it restarts ranks before wtrain does."""
    if launcher is None or not launcher.max_restarts:
        return ()
    times = words.count(launcher.max_restarts, "time")
    line = (
        f"{launcher.family} restarts failed ranks itself, {times} in each attempt, without a newer "
        "checkpoint from wtrain; wtrain acts on hangs, and when the launcher gives up"
    )
    if "store" in launcher.settled:
        line += f"; {SHARED_STORE_OFF} is as you set it, and many such restarts fail unless it is 1"
    return (line,)


def _on_a_hang(policy: Policy) -> str:
    recovery = policy.recovery
    if recovery.observe:
        return "on a hang: dump and report, nothing is killed and nothing is changed (--observe)"
    if recovery.on_stall == "report":
        return "on a hang: dump and report, nothing is killed (--on-stall report)"
    if recovery.on_stall == "stop" or recovery.max_restarts == 0:
        return "on a hang: dump and stop, no restart"
    text = (
        "on a hang: dump, stop, restart from the newest valid checkpoint "
        f"(at most {words.times(recovery.max_restarts)}); "
    )
    if "training" in recovery.allow:
        return text + "may change workers, threads, batch, evaluation, length"
    text += "may change workers and threads; "
    single = [clean(name, 60) for name in recovery.allow if name not in ("execution", "device")]
    if single:
        return text + f"of training settings only {words.listed(single)}"
    return text + "may not change batch, evaluation, length (--allow training)"


def closing_lines(
    state: State,
    script_lines: facts.ScriptLines,
    *,
    report: str | None = None,
    newest_save: SaveRecord | None = None,
) -> tuple[str, ...]:
    """The summary at the end of a run.

    Args:
        state: of the run, which has ended.
        script_lines: remedy id -> line for the training script.
        report: path of report.html, if there is one.
        newest_save: the newest that a hook noted and that still exists.
    """
    if not state.finished:
        return ()
    lines = [outcome_line(state)]
    if state.warning:
        lines.append(f"warning: {why_text(state.warning)}")
    lines += [f"the fault may lie with {words}" for words in guilty_words(state)]
    lines += [f"left running: {words}" for words in left_words(state)]
    reported = [stall for stall in state.stalls if stall.reported_only]
    if reported:
        lines.append(f"would have killed {words.times(len(reported))}, here is why:")
        lines += [f"  {clean(stall.id, 40)}: {why_text(stall.verdict)}" for stall in reported]
    attempt = state.attempt
    crash = attempt.crash if attempt is not None else None
    if crash is not None and crash.exception is not None and state.outcome in ("failed", "gave_up"):
        raised = traceback_lines(crash.exception)[:-1]
        lines += [f"{' ' * (len(one) - len(one.lstrip()))}{clean(one)}" for one in raised]
    if bundles := [stall.dir for stall in state.stalls if stall.dir]:
        where = words.short_path(str(PurePath(bundles[-1]).parent), state.cwd)
        lines.append(f"dumps: {where} ({words.listed([clean(s.id, 40) for s in state.stalls])})")
    lines += facts.tried_lines(state)
    if permanent := facts.permanent_lines(state, script_lines).values():
        lines.append("to make this permanent, put into your script:")
        lines += [f"  {clean(part)}" for line in permanent for part in line.splitlines()]
    if state.outcome in ("gave_up", "failed", "stopped") and state.attempts:
        lines.append(f"to continue: {facts.run_again(state)}")
        newest = newest_save.path if newest_save is not None else state.checkpoint_chosen
        if newest is not None:
            lines.append(f"newest checkpoint: {words.short_path(newest, state.cwd)}")
    if report is not None and (state.stalls or state.outcome != "succeeded"):
        lines.append(f"report: {words.short_path(report, state.cwd)}")
    return prefixed(*lines)


def outcome_line(state: State) -> str:
    """How a run ended, or its state: why, step, restarts, stalls and time, in one line."""
    if state.finished:
        outcome = {"succeeded": "success", "gave_up": "gave up"}.get(state.outcome or "failed")
        head = f"{outcome or state.outcome or 'failed'}: {why_text(state.why or Why('unknown'))}"
    elif state.given_up is not None:
        head = f"given up: {why_text(state.given_up.why)}"
    else:
        number = state.attempt.attempt if state.attempt is not None else 0
        head = f"{state.state}, attempt {number}"
    parts = []
    if (step := facts.newest_step(state)) is not None:
        parts.append(_of_total(step, state.progress))
    if state.restarts:
        parts.append(words.count(state.restarts, "restart"))
    counts = Counter(stall.why for stall in state.stalls)
    parts += [words.count(counts[kind], kind) for kind in ("stall", "crash") if counts[kind]]
    if state.started_at is not None and state.updated_at is not None:
        parts.append(duration(state.updated_at - state.started_at))
    return f"{head}{'; ' if parts else ''}{', '.join(parts)}"


def verdict_line(state: State) -> str:
    """The same with what closing_lines() says in lines of their own."""
    reported = sum(stall.reported_only for stall in state.stalls)
    would = f"; would have killed {words.times(reported)}" if reported else ""
    warning = f"; warning: {why_text(state.warning)}" if state.warning else ""
    ended = "" if state.finished else "not ended; recorded last: "
    return f"{ended}{outcome_line(state)}{would}{warning}"


def _of_total(step: int, progress: RunProgress) -> str:
    total = f" of {words.number(progress.total_steps)}" if progress.total_steps else ""
    return f"{facts.step_words(step)}{total}"


def progress_line(progress: RunProgress) -> str | None:
    """Step, pace, loss and time left; None while no step is known."""
    if progress.step is None:
        return None
    text = _of_total(progress.step, progress)
    if progress.percent is not None:
        text += f" ({words.percent_text(progress.percent)})"
    parts = [text]
    if progress.steps_s is not None:
        parts.append(words.pace(progress.steps_s))
    if progress.samples_s is not None:
        parts.append(f"{words.number(progress.samples_s)} samples/s")
    if progress.loss is not None:
        parts.append(f"loss {words.number(progress.loss)}")
    if progress.eta_s:
        parts.append(f"about {words.rough_duration(progress.eta_s)} left")
    return ", ".join(parts)


CAP_BYTES = 4096
"""Kubernetes shows no more of a container's termination message."""
_WHY = 700


def verdict_text(state: State) -> str:
    """The end or the state of a run, the last stall or crash, and its evidence, a line each.

    At most CAP_BYTES in UTF-8, with a newline at the end.
    """
    lines = [f"{PREFIX}{outcome_line(state)}"]
    caught = state.last_stall
    if caught is not None and state.outcome != "succeeded":
        text = f"{caught.why} {clean(caught.id, 40)} of attempt {caught.attempt}"
        if caught.why == "stall":
            text += f": {why_text(caught.verdict)}"
        if caught.crash is not None:
            text += f": {crash_words(caught.crash)}"
        found = sentences(caught.explanation) if caught.explanation is not None else ()
        lines.append(f"{text}. {clean(' '.join(found), _WHY)}".rstrip())
        lines += [f"evidence: {clean(caught.dir)}"] if caught.dir is not None else []
    return cut_bytes("\n".join(lines), CAP_BYTES - 1) + "\n"


def next_words(state: State) -> str:
    scans = state.scan_failures and state.next_plan is None
    return "scan of checkpoints" if scans else "attempt"


def status_line(state: State, observation: Observation, progress: RunProgress) -> str | None:
    """The line at the bottom of the terminal; None: other lines say all."""
    text = _text(state, observation, progress)
    if text is None:
        return None
    number = state.attempt.attempt if state.attempt is not None else 0
    return f"{PREFIX}{text}{f', attempt {number}' if number > 1 else ''}"


def _text(state: State, observation: Observation, progress: RunProgress) -> str | None:
    now = observation.now
    if state.look is not None and state.look.patience.row == "input":
        return None  # a prompt is open
    if state.state == "backoff" and state.backoff_until is not None:
        return f"the next {next_words(state)} starts in {duration(state.backoff_until - now)}"
    kill = state.kill
    if kill is not None and kill.stage in ("ask", "root"):
        waited = duration(now - kill.stage_mono)
        return f"waiting for the training to exit, {waited}; Ctrl-C kills"
    attempt = state.attempt
    if attempt is None or attempt.ended or state.state not in ("starting", "running"):
        return None
    if state.muted:
        return f"stalled, reported only: no progress for {duration(observation.verdict.age_s)}"
    if state.suspicion is not None:
        silent = f"no progress for {duration(observation.verdict.age_s)}"
        if state.look is None:
            return f"{silent}, taking a stack sample"
        return f"{silent}. {until_words(state.look)} {awaited(state.look.patience)}"
    line = progress_line(progress)
    if line is not None:
        return line
    phase = next((slot.phase for _, slot in observation.sample.judged), "unknown")
    doing = f", phase {phase}" if phase not in ("unknown", "train") else ""
    return f"no step yet{doing}, {duration(now - attempt.launching_mono)}"
