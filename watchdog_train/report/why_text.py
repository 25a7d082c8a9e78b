"""Reasons as sentences: the only place that turns a Why into words. Pure.

What it returns is shown and never read again; tests/core/test_rendered_text.py forbids that.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from watchdog_train.core.detection.rank_gone import how_it_ended
from watchdog_train.core.model import Outliving, Why, WhyCode, signal_name
from watchdog_train.core.model.gpu import GpuHolder
from watchdog_train.core.model.waits import Stopped
from watchdog_train.report import words
from watchdog_train.report.explanation_text import crash_words, held_words
from watchdog_train.report.words import clean

SENTENCES: dict[WhyCode, str] = {
    "said": "{problem}",
    "unknown": "for an unknown reason",
    "exited": "{exited}",
    # -- silence
    "no-progress": "rank {rank} made no progress for {seconds} in phase {phase}",
    "no-output": "no output and no heartbeat for {seconds} in phase {phase}",
    "not-exited": "training is over, but rank {rank} has not ended, without a sign of progress for "
    "{seconds} in phase {phase}",
    "job-no-progress": "no progress for {seconds} in phase {phase}",
    "prints": "only its output continues",
    "quiet-at-work": "it has been as idle while it worked, so only its stacks can prove a hang",
    "rank-ended": "{end}",
    "rank-ended-before": "{end}, {seconds} ago",
    "others-wait": "{ranks} made no progress for {seconds} since, and nothing has stopped or "
    "restarted the others",
    "stopped": "{which} {was} {how}. {to}",
    "continued": "{which} continued after {seconds}",
    "input": "pid {pid} waits for a person to type something",
    "device-wait": "ranks have only waited for their GPUs for {seconds} (limit {limit}), the same "
    "in {count} stack samples, and nothing but the CPU time of their waiting threads has moved",
    "over-stall-timeout": "rank {rank}: no progress for {seconds}, over your --stall-timeout "
    "{limit}",
    "over-startup-timeout": "rank {rank}: no first step for {seconds}, over your "
    "--startup-timeout {limit}",
    "progress": "progress or activity",
    "no-stacks": "the stacks could not be read",
    "waited": "waited {seconds} more",
    "progress-before-kill": "progress arrived before anything was killed",
    "ended-by-itself": "the training exited before anything was killed",
    # -- ending processes
    "survived": "alive {seconds} after SIGKILL, so inside the kernel: {names}",
    "survived-frozen": "{how}, so SIGKILL takes effect when it is thawed. {to}",
    "survivors": "still alive after SIGKILL: {pids}",
    "survivors-block": "processes survived SIGKILL; nothing is started over them",
    "not-ended-in-time": "it has not ended within {seconds}",
    "no-common-step": "its ranks found no common step for it",
    "nothing-left": "the keeper exits when no process is left",
    "keeper-stays": "the keeper did not exit",
    "keeper-survived": "the keeper survived SIGKILL: inside the kernel",
    "outlived": "outlived the training: {names}",
    "outlives": "the script has exited with code 0; waiting up to {limit} for {outliving}",
    "outlived-killed": "killed processes that still ran after the script's exit: {outliving}",
    "goes-on": "the script has exited with code 0, and its training continues {reached} in pid "
    "{pids}; wtrain follows it",
    "exit-not-seen": "the exit code of the training is unknown; its interpreter ended without an "
    "exception",
    "asked": "{who}",
    "asked-to-save": "{who}: asked training to save and stop",
    "asked-to-stop": "{who}: asked the loop to stop; saving is up to it",
    "cannot-ask": "it cannot be asked to save first",
    "no-step-yet": "no step yet",
    "save-under-way": "a save is under way: it gets up to {limit} before the training is ended",
    "save-late": "asked to save {seconds} ago",
    "save-taken": "the training has taken it",
    "save-not-taken": "no step has ended that could take it",
    "no-save-since": "no finished save was seen since",
    "not-proven": "{path} is not known to be valid: {because}",
    "not-among-found": "it is not among the checkpoints that were found",
    # -- how a run ended
    "unsaved": "it was asked to save first, and no valid checkpoint was seen since",
    "nothing-started": "nothing was started",
    "command-failed": "the command could not be started: {because}",
    "finished-but-hung": "the training was finished, but its process hung and was killed",
    "training-finished": "the training was finished",
    "no-step-seen": "no training step was seen",
    "ended-early": "ended at step {step} of {of}",
    "others-went-on": "{end}, and the other ranks continued",
    "behind-exit-0": "{end}, though the command itself exited with code 0",
    "began-again": "the checkpoint was not loaded: training restarted at a lower step",
    "not-confirmed": "resume not confirmed",
    "keeper-silent": "the keeper did not report in time",
    "keeper-ended-early": "the keeper (pid {pid}) ended before it had started anything",
    # -- the next attempt
    "first-attempt": "first attempt, the command as it was given",
    "not-available": "not available here: {names}",
    "attempt-ended": "{attempts} ended {reached}, {exited}{family}",
    "attempt-failed": "{attempts}: {crash}{family}",
    "attempt-stood-still": "{attempts} stood still {reached}: {end}{family}",
    "attempt-hung": "{attempts} hung {reached}{family}",
    "on-stall": "no restart, because on-stall is {option}",
    "on-crash": "no restart, because on-crash is stop",
    "interrupted": "not restarted: it was interrupted",
    "would-end-so-again": "not restarted: a restart would fail the same way",
    "wrong-arguments": "not restarted: the script does not take these arguments",
    "would-ask-again": "a restart would only ask again: answer it in advance",
    "no-restart": "no restart is allowed here (--max-restarts 0)",
    "restarts-used": "{count} restarts without a newer step or checkpoint are all that is allowed "
    "(--max-restarts {of})",
    "diagnosis-names": "the diagnosis {diagnosis} names it",
    "fallback": "experiment: nothing that was seen calls for it",
    "asked-by-with": "asked for by --with",
    "taking-back": "taking back {names}, with which it did not begin",
    "passing-over": "passing over {names}, with which attempts failed",
    "trying": "trying {names}",
    "experiment": "as an experiment: {names}",
    "again": "trying again unchanged",
    "again-with": "trying again with {names}",
    "not-allowed": "not allowed so far: {options}",
    "plan-failed": "{count} attempts with this plan reached no newer step or checkpoint",
    "same-again": "the same failure {count} times without a newer checkpoint, so it is not "
    "restarted again",
    "no-remedy-left": "no further remedy may be tried",
    "port-taken": "MASTER_PORT is taken by another process, so the ranks meet at {count}",
    "nodes-meet": "the nodes meet at {path}",
    "restarted": "wtrain restart, after it had ended ({option}: {because})",
    "allowed": "allowed: {names}",
    # -- checkpoints
    "failed-from-it": "{attempts} resumed from it and failed: {exited} {reached}",
    "hung-from-it": "{attempts} resumed from it and failed: it hung {reached}",
    "not-older": "it is not an older checkpoint of this training",
    "no-proof": "not known to be valid, and an older one is: {problem}",
    "others-write": "{run} writes there, too",
    "before-this-run": "it is from before this run began",
    "no-step-from-it": "{attempts} began from it and did not reach a step: {problem}",
    "unseen": "{who} does not see it: it has to be on a file system that all machines share",
    "no-place": "no place with checkpoints is known{aside} (--checkpoints DIR would name it)",
    "no-valid-checkpoint": "no checkpoint of this run can be used{aside}",
    "resumes-from": "it resumes from {checkpoint}",
    "newest-checkpoint": "the newest checkpoint is {checkpoint}",
    "option-decides": "{option} decides what is loaded",
    "only-variable": "only WTRAIN_RESUME_FROM names it: unless the script reads that or resumes by "
    "itself, training begins from its start",
    "no-option-known": "no option of the script that resumes is known",
    "not-through-shell": 'nothing can be added to `bash -c "..."`: start a script file, or resume '
    "from WTRAIN_RESUME_FROM",
    "not-through-program": "a shell script or another program starts it and may not pass an option "
    "on: if it does, --resume-arg names the option",
    "resume-adds": "a restart adds {option} to the command",
    "resume-by-api": "the script asks watchdog_train.resume_path() for the newest valid checkpoint",
    "resume-by-hook": "a restart hands the newest valid checkpoint to the Trainer",
    "resume-later": "not known before the first step, which shows the script's options",
    "resume-unknown": "no way is known: unless the script resumes by itself, a restart begins at "
    "step 0",
    "option-resumes": 'the script knows {names}: --resume-arg "{option}" would resume',
    "option-may-resume": 'the script knows {names}: --resume-arg "{option}" would resume, if that '
    "is what it means",
    "put-back": "to resume from it at that path: {copy}",
    "own-count": "the training's own count is at step {step}",
    "no-load-seen": "no load of it was seen",
    "loaded": "the training loaded the checkpoint and continued from its step",
    "loaded-only": "the checkpoint was loaded, but no step count of the training's own was seen",
    "loaded-but-anew": "it was loaded, but the training's own step count restarted at {step}",
    "loaded-but-at": "the checkpoint was loaded, but the step counter is at {step}",
    "rank-not-loaded": "rank {rank} has not loaded the checkpoint that other ranks continue from",
    "first-step-behind": "the training's own first step lies behind the checkpoint's",
    "valid-existed": "a valid checkpoint existed",
    "not-resumed": "{attempts} did not resume from its checkpoint",
    "stopped-anew": "{attempts} did not resume from {its_step} ({path}) and restarted at a lower "
    "step: stopped before it overwrites better checkpoints",
    "copy-kept": "a copy of it is kept: {path}",
    "resume-by-option": "to resume: wtrain run --resume-arg '{option}' -- {who}",
    "resume-by-script": "to resume: let the script load {path}, which WTRAIN_RESUME_FROM names, "
    "then wtrain restart {who}",
    "allow-anew": "to allow restarts without the checkpoint: --on-not-resumed continue",
    "shared-directory": "{run} writes its checkpoints to {path}, too; this run resumes only from "
    "unchanged checkpoints that its own hooks recorded. Give one of the two runs another directory",
    "scan-failed": "the scan of checkpoints failed ({problem})",
    "next-noted": "next: the newest save that the hooks noted, if it is unchanged",
    "scan-cut": "the scan of checkpoints is not complete: {problem}",
    "scan-again": "it is repeated with more time",
    "waits-for-scan": "the next attempt waits for a scan that answers, {limit} at most",
    # -- what a start waits for
    "cannot-start": "the next attempt cannot be started: {because}",
    "gpu-ours-holds": "a process of this run that has exited holds the GPU memory that the next "
    "attempt needs, {limit} so far: {holders}",
    "gpu-other-holds": "another process holds the GPU memory that the next attempt needs, {limit} "
    "so far: {holders}",
    "gpu-not-given-back": "a process of this run has not released its GPU memory: {holders}",
    "gpu-taken": "another process has taken the GPU memory of the job: {holders}; the training "
    "itself is not out of memory",
    "gpu-unnamed": "memory of GPU {names} is in use, and the driver does not name the process",
    "waited-for": "waiting {limit} at most",
    # -- notices
    "blind": "no process can be read ({problem}): until this ends no stall is declared, and the "
    "last known state is shown",
    "gpus-unseen": "the GPUs are no longer read: {problem}",
    "keeper-gone": "the keeper (pid {pid}) is gone while training runs on",
    "end-by-parent": "this supervisor is its parent now and will see its exit code",
    "end-by-kernel": "its exit code will be known only on Linux 6.15 and newer",
    "output-lost": "output that the keeper had not written yet is lost",
    "reader-behind": "the reader of wtrain's output is behind, and the training waits in write as "
    "it would without wtrain; no stall is declared for that",
    "no-heartbeat": "no heartbeat from inside after {limit}: this attempt is watched by its "
    "output, CPU, I/O and network alone, and cannot be asked to save (python -I, -E or -S, a "
    "cleared environment, and programs other than Python with torch give none)",
    "machine-failed": "the training has failed on another machine",
    "machine-slept": "the machine slept for {seconds}; that time is not counted as silence, and "
    "all limits restart",
    "supervisor-slept": "this supervisor was stopped or got no CPU for {seconds}; that time is "
    "not counted as silence, and all limits restart",
    "task-lost": "the worker ended inside a Celery task, and nothing resumes it: a restart starts "
    "only the worker",
    "task-acknowledged": "{who} (lost: it was acknowledged before it began, as acks_late is off; "
    "send it again)",
    "task-maybe-lost": "{who} (lost if Celery acknowledged it at the end, as "
    "task_reject_on_worker_lost is off)",
    "task-delivered-again": "{who} (its broker delivers it again: acks_late and "
    "task_reject_on_worker_lost are on)",
    "gpu-shared": "the GPU is shared with {names}",
    "disk-low": "the disk of {path} is nearly full: {size} left",
    "checkpoint-too-large": "the next checkpoint needs {need}, and {path} has {size} left",
    "memory-low": "memory is nearly used up: {size} left",
    "never-saved": "no finished save was seen in {rough} of training: if it hangs now, all of it "
    "is lost",
    "save-overdue": "a checkpoint is overdue: the newest save was {rough} ago, and there were "
    "{limit} at most between two before",
    "metrics-not-written": "the metrics file cannot be written: {problem}",
    "message-not-written": "the termination message cannot be written to {path}: {problem}",
    # -- several tasks
    "world-elsewhere": "only {count} of the {of} ranks of its world are here: nothing is known of "
    "the others, and a hang may stay undetected; start all tasks with --nodes auto, and on several "
    "machines with --coordination tcp://HOST:PORT, HOST being the machine of the first one",
    "not-come": "{who} did not come within {limit}",
    "waits-for-agents": "waiting for {who}",
    "machine-lost": "{who} was not heard for {seconds}",
    "requeued": "the scheduler has ended all of the job since",
    "leader-anew": "a leader before this one had begun it; its part of it is gone",
    "leader-lost": "the leader was not heard for {seconds}",
    "guilty": "the other ranks waited for rank {rank}{family}",
    "not-joint": "the evidence of all {option}s was not diagnosed together: {problem}",
    # -- the house
    "rebooted": "the machine was started again",
    "supervisor-gone": "the supervisor was gone",
    "event-torn": "it was killed in the middle of writing an event, which is lost",
    "our-bug": "a bug of wtrain: {problem}",
    "disk-silent": "the disk does not answer",
    "samples-left-out": "{count} samples left out",
    "in-memory-only": "the newest events are in memory only: {problem}",
    "command-interrupted": "the supervisor ended while it ran; it is not started again",
    "could-not-start": "it could not be started: {problem}",
    "not-ended-killed": "it had not ended after {limit} and was killed",
    "left-killed": "processes that it left running were killed after {limit}",
    "newer-waited": "{count} newer events waited for their commands",
    "run-over": "the run was over before its turn came",
    # -- only behind another reason
    "limit": " (limit {limit})",
    "learnt-limit": " (limit {limit}, learnt from this run)",
    "default-limit": " (limit {limit}, default)",
    "job-idle": ", and the whole job is idle: no CPU, no I/O, no process born or ended",
    "tree-idle": ", and all visible processes of the job are idle: no CPU, no I/O, no process "
    "born or ended",
    "job-busy": ", but the job is busy",
    "live-lock": ", likely a live-lock: in {count} samples it only polls in a loop in {names}, "
    "and the rest of the job is idle",
    "other-in-limit": ", but another rank is within its own limit",
    "only-prints": ", but the job is alive: its output continues while no step is counted",
    "starved": ", but the job gets no CPU: other programs use this machine's CPUs",
    "cpu-unknown": ", and whether the job works is unknown: its CPU time cannot be read",
    "elsewhere-unknown": ", but the job is busy elsewhere, or its other ranks are unknown",
    "device-lacks": "; to call it a stall, wtrain lacks: {lacks}",
    "gpus-spin": ", and the GPUs only spin: {number:.0f} % utilisation at {before:.0f} % of the "
    "power limit, as in a collective that never completes; no I/O, no process born or ended",
    "in-kernel": ", and the job waits in the kernel (state D) for a disk, a network file system or "
    "a driver: pid {pids}; no signal ends such a wait",
    "others-may-finish": ", and the others may be finishing",
    "now": ", now",
    "with-remedies": ", with {names}",
    "not-rank-0": ", for ranks other than 0",
    "resumed-from": ", resumed from {names}",
    "nothing-left-to-try": ", and nothing is left to try",
    "maybe-incomplete": ", which is not known to be valid",
    "by-known-option": ", by {flag} (which the script's own parser knows)",
    "parser-knows": " (which the script's own parser knows)",
    "from-start": ": unless the script resumes by itself, training begins from its start",
    "scans-failed": ", {count} times in {seconds}; beginning at step 0 could lose checkpoints",
    "waits-for-room": ": the next attempt waits for room, {limit} at most",
    "no-better": ", unchanged after waiting {limit}",
}
"""The sentence of each reason. Behind another one it follows a semicolon, unless it begins with
punctuation or a space."""

_BEHIND = {code for code, sentence in SENTENCES.items() if sentence[0] in " ,;:"}


_TEXTS = ("who", "path", "other", "option", "problem")
"""Fields with text that may come from outside."""


def why_text(why: Why, *, brief: bool = False) -> str:
    """The sentence of a reason; brief: its headline, without what is known besides."""
    sentence = SENTENCES.get(why.code, why.code)  # of a log that another version has written
    text = sentence.format(**_values(why, brief=brief))
    if "{because}" in sentence:
        return text
    return text + "".join(
        f"{'' if one.code in _BEHIND else '; '}{why_text(one)}"
        for one in why.because
        if not brief or one.code == "waited"
    )


def with_text(data: Any) -> Any:
    """The data in built-in types for JSON, each reason with its sentence."""
    return _with_text(msgspec.to_builtins(data))


def _with_text(data: Any) -> Any:
    if isinstance(data, list | tuple):
        return [_with_text(each) for each in data]
    if not isinstance(data, dict):
        return data
    if data.get("code") in SENTENCES:
        return {**data, "text": why_text(msgspec.convert(data, Why))}
    return {name: _with_text(each) for name, each in data.items()}


def holders_text(holders: tuple[GpuHolder, ...]) -> str:
    """`pid 4242 (python, user alice) with 61.2 GiB on GPU 0`."""
    found = []
    for one in holders:
        size = "" if one.memory_bytes is None else f" with {words.size_text(one.memory_bytes)}"
        found.append(f"{one.name or f'pid {one.pid}'}{size} on GPU {one.device}")
    return words.listed(found, 8)


def outliving_text(found: tuple[Outliving, ...]) -> str:
    """`python upload.py (pid 4242): 12 % of a core, 9.8 MiB/s read and written; writes to /a/b`."""
    texts = []
    for one in found:
        does = [] if not one.cpu_share else [f"{one.cpu_share:.0%} of a core"]
        if one.io_bytes_s:
            does.append(f"{words.size_text(int(one.io_bytes_s))}/s read and written")
        files = f"; writes to {clean(words.listed(list(one.files), 4), 400)}" if one.files else ""
        command = clean(one.command, 120) or "?"
        texts.append(f"{command} (pid {one.pid}): {', '.join(does) or 'idle'}{files}")
    return "; ".join(texts) or "other processes"


def exit_text(code: int | None, signal: int | None) -> str:
    """`exit code 1`, `killed by SIGKILL`."""
    if code is not None:
        return f"exit code {code}"
    if signal is not None:
        return f"killed by {signal_name(signal)}"
    return "exit status unknown"


def _values(why: Why, *, brief: bool) -> dict[str, object]:
    found = {name: getattr(why, name) for name in why.__struct_fields__}
    found |= {name: clean(found[name], 800) or "unknown" for name in _TEXTS}
    found["problem"] = str(found["problem"]).rstrip(".")  # more follows in the same line
    path = found["path"]
    how, to = held_words(why.held or Stopped(), why.pids[:8])
    several = len(why.pids) > 1
    each = words.listed([str(each) for each in why.pids], 8)
    pid = "" if why.pid is None else f" (pid {why.pid})"
    return found | {
        "because": "; ".join(why_text(one, brief=brief) for one in why.because),
        "seconds": words.duration(why.seconds or 0.0),
        "limit": words.duration(why.limit_s or 0.0),
        "rough": words.rough_duration(why.seconds or 0.0),
        "ranks": words.ranks_text(why.ranks),
        "which": f"pid{'s' * several} {each}"
        if why.rank is None
        else f"rank {why.rank} (pid {each})",
        "was": "were" if several else "was",
        "how": how,
        "to": to,
        "pids": ", ".join(map(str, why.pids[:8])) or "unknown",
        "attempts": f"attempt{'s' if len(why.attempts) > 1 else ''} "
        + words.listed([str(each) for each in why.attempts]),
        "lacks": ", ".join(why.names).replace("-", " "),
        "names": clean(", ".join(why.names), 800),
        "options": " ".join(f"--with {clean(x, 60)} --allow {clean(x, 60)}" for x in why.names),
        "flag": found["option"].partition(" ")[0],
        "size": words.size_text(why.size or 0),
        "need": words.size_text(why.need or 0),
        "number": why.number or 0.0,
        "before": why.before or 0.0,
        "exited": exit_text(why.exit, why.signal),
        "crash": crash_words(why.crash, why.step) if why.crash is not None else "it failed",
        "end": how_it_ended(why.end) if why.end is not None else "a rank ended",
        "holders": holders_text(why.holders),
        "outliving": outliving_text(why.outliving),
        "run": f"the run {found['who']}{pid}" if why.who else "another run",
        "reached": f"at step {why.step}"
        if why.step is not None
        else "in its training steps"
        if why.phase == "train"
        else "before its first step",
        "its_step": "its step" if why.step is None else f"step {why.step}",
        "checkpoint": path if why.step is None else f"step {why.step} ({path})",
        "copy": f"cp {shlex.join([why.path, why.other])}",
        "aside": f" ({found['problem']})" if why.problem else "",
        "diagnosis": why.family or "of the evidence",
        "family": f" ({why.family}, {why.certainty})" if why.family else "",
    }
