"""`wtrain bisect`: short supervised trials that find the smallest change which avoids a hang.

Must leave nothing running; a trial may overwrite checkpoints only if allowed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from watchdog_train.cli.options import json_option
from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.cli.reading import newest_save
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import dump_policy
from watchdog_train.config.schema import build, flags, flatten
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Limits
from watchdog_train.core.recovery import bisect as core
from watchdog_train.errors import EXIT_GAVE_UP, EXIT_INTERRUPTED, WtrainError
from watchdog_train.report.explanation_text import crash_words, what_happened
from watchdog_train.report.facts import step_words
from watchdog_train.report.words import clean, columns, count, duration
from watchdog_train.store import requests
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.run_paths import RunDirectory, default_runs_dir, runs_in
from watchdog_train.whole_files import replace_whole

_END_S = 120.0
"""For a trial that is stopped, or is silent at its time limit: its evidence and its kill."""
_SILENCE = ("detection.stall_timeout_s", "detection.startup_timeout_s")
_CHANGES = {
    "recovery.on_stall": "stop",
    "recovery.on_crash": "stop",
    "recovery.observe": False,
    "recovery.max_restarts": 0,
    "recovery.resume_arg": None,
    "job.nodes": None,
    "output.termination_log": None,
    "notify.urls": (),
    "notify.commands": (),
    "metrics.file": None,
}
"""A trial is not restarted, resumes from nothing and sends no notification."""


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--minutes", type=click.IntRange(1, 10_000), default=10, help="Longest trial.")
@click.option("--in-place", is_flag=True, help="Allow trials to write over checkpoints.")
@json_option
@policy_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def bisect(
    *, minutes: float, in_place: bool, as_json: bool, command: tuple[str, ...], **flags: Any
) -> None:
    """Run COMMAND with 2 examples, no workers, one rank, no evaluation; as given; then in between.

    At most 15 trials, with a time limit from the first that ran. At the end: what hung, at which
    line, and the smallest change that avoids it, as a `wtrain run` line. Exit code 0: such a
    change was found, or COMMAND did not hang; 76: none was found, or COMMAND fails; 130: Ctrl-C.
    """
    from watchdog_train.remedies.catalogue import refuse_unknown
    from watchdog_train.supervisor.command_check import check_command

    policy = policy_from(flags).policy
    refuse_unknown(policy)
    check_command(command)
    new = () if in_place else _new_places(command, policy.recovery.checkpoints)
    name = time.strftime(f"bisect-%Y%m%d-%H%M%S-{os.getpid()}")
    folder = default_runs_dir(policy.runs_dir) / name
    for number in {getattr(signal, "SIGHUP", signal.SIGTERM), signal.SIGTERM}:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    levels = core.levels_of(command, os.environ)
    trials: list[core.Trial] = []
    code, left = EXIT_GAVE_UP, set[str]()
    try:
        while (setting := core.next_setting(trials, levels)) is not None:
            place = folder / f"trial-{len(trials) + 1:02d}"
            total_s, silence_s = core.limits_s(trials, 60.0 * minutes)
            values = {**flatten(policy), **_CHANGES, "runs_dir": str(place)}
            values |= {key: flatten(policy)[key] or silence_s for key in _SILENCE}
            remedies = [change.remedy for change in setting if change.remedy]
            values["recovery.with_remedies"] = (*policy.recovery.with_remedies, *remedies)
            argv = core.command_of(command, setting)
            for index, path in enumerate(new):
                argv = _moved(argv, path, str(place / f"output-{index}"))
            words = f"{setting_words(setting)}, at most {duration(total_s)}"
            echo(f"wtrain: {place.name}: {words}", err=True)
            begun = time.monotonic()
            run, late = _run(argv, place, dump_policy(build(values)), total_s)
            took_s, state = time.monotonic() - begun, _state(run)
            trials.append(core.judge(state, trials, setting, seconds=took_s, late=late))
            save = newest_save(run, state)
            if save is not None and place not in Path(save.path).parents:
                left.add(save.path)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    found = core.best(trials)
    if as_json:
        print_json(trials=trials, run=run_line(found, command) if found else None)
    else:
        echo("\n".join([*table(trials), *closing(trials, command)]))
    for path in sorted(left):
        echo(f"wtrain: a trial saved {path}; remove it before you train", err=True)
    ran = any(one.setting == core.AS_GIVEN and one.outcome == "ran" for one in trials)
    sys.exit(0 if (found or ran) and code == EXIT_GAVE_UP else code)


def _run(
    argv: tuple[str, ...], place: Path, settings: str, total_s: float
) -> tuple[RunDirectory, bool]:
    """Run a trial to its end; True: it was stopped at its time limit."""
    place.mkdir(mode=0o700, parents=True)
    replace_whole(place / "trial.yaml", settings.encode())
    # Variables whose values the settings of the trial hold already.
    said = {"WTRAIN_CONFIG", "WTRAIN_PRESET", *(setting.variable for setting in flags())}
    options = ("run", "--config", str(place / "trial.yaml"), "--")
    # A program that passes limits to main() passes them to each trial as well.
    own = click.get_current_context().find_object(Limits) is not None
    program = [sys.argv[0]] if own else ["-m", "watchdog_train"]
    with (place / "trial.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *program, *options, *argv],
            env={key: value for key, value in os.environ.items() if key not in said},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        late = not _ends(process, total_s)
        if late and _state(_run_of(place)).suspicion is not None:
            late = not _ends(process, _END_S)
    finally:
        run = _run_of(place)
        if process.poll() is None and run is not None:
            requests.post(run, "stop_now", "wtrain bisect")
        elif process.poll() is None:
            process.terminate()
        _ends(process, _END_S)  # where it still runs, the next trial is refused as its duplicate
    if run is None:
        told = (place / "trial.log").read_text("utf-8", "replace")[-2000:]
        raise WtrainError(
            "a trial could not be started", context=told, reference="bisect-trial-failed"
        )
    return run, late


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _run_of(place: Path) -> RunDirectory | None:
    return next(iter(runs_in(place)), None)


def _state(run: RunDirectory | None) -> State:
    if run is None or not run.events.exists():
        return State()
    return read_state(run, strict=False)


def _new_places(command: tuple[str, ...], checkpoints: tuple[str, ...]) -> tuple[str, ...]:
    """Empty or missing output folders that the command names: each trial gets its own."""
    from watchdog_train.checkpoints.find import directories_in_arguments, find_candidates
    from watchdog_train.checkpoints.registry import all_formats

    told = directories_in_arguments(command, os.getcwd())
    known = [os.path.abspath(os.path.expanduser(path)) for path in checkpoints]
    found = find_candidates((*known, *told) or (os.getcwd(),), formats=all_formats())[0]
    if found:
        raise WtrainError(
            "trials could write over checkpoints here, delete them or resume from them",
            context=found[0].path,
            hint="give COMMAND a new output directory, or --in-place",
            reference="bisect-checkpoints",
        )
    return tuple(path for path in told if not os.path.exists(path) or not os.listdir(path))


def _moved(argv: tuple[str, ...], path: str, to: str) -> tuple[str, ...]:
    """The command with another path in place of this one: `--out_dir=PATH`, `--out_dir PATH`."""
    moved = []
    for word in argv:
        name, equals, value = word.rpartition("=")
        same = value and os.path.abspath(os.path.expanduser(value)) == path
        moved.append(f"{name}{equals}{to}" if same else word)
    return tuple(moved)


_CAP = 200
_NONE = {"workers": "no workers", "evaluation": "no evaluation"}


def setting_words(setting: core.Setting) -> str:
    """`no workers, 1 rank, 2 examples`."""
    words = [count(one.amount, one.what[:-1]) if one.amount else _NONE[one.what] for one in setting]
    return ", ".join(words) or "as given"


def table(trials: Sequence[core.Trial]) -> list[str]:
    rows = [("trial", "setting", "outcome", "after", "where")]
    for number, one in enumerate(trials, 1):
        idle = one.outcome == "ran" and one.setting != core.AS_GIVEN and not one.effective
        words = "no effect" if idle else one.outcome
        after = duration(one.seconds)
        rows.append((str(number), setting_words(one.setting), words, after, _where(one)))
    return [*columns(rows), ""]


def closing(trials: Sequence[core.Trial], command: tuple[str, ...]) -> list[str]:
    given = next((trial for trial in trials if trial.setting == core.AS_GIVEN), None)
    if given is None:
        return ["The command was not tried as given."]
    took = duration(given.seconds)
    match given.outcome:
        case "ran":
            return [f"As given it did not hang in {took}."]
        case "unclear":
            return [f"As given it neither hung nor ended in {took}. Try a larger --minutes."]
        case "failed":
            return [f"As given it does not hang, it fails: {_where(given)}."]
    lines = [f"As given it hangs at {_where(given)}."]
    lines += [what_happened(given.explanation)] if given.explanation is not None else []
    lines += [f"Evidence: wtrain show {shlex.quote(given.evidence)}"] if given.evidence else []
    found = core.best(trials)
    if found is None:
        return [*lines, f"It ran with none of {count(len(trials) - 1, 'smaller setting')}."]
    lines.append(f"The smallest change with which it ran: {setting_words(found.effective)}.")
    return [*lines, f"  {run_line(found, command)}"]


def run_line(trial: core.Trial, command: tuple[str, ...]) -> str:
    """`wtrain run --with num-workers-0 -- python train.py`."""
    remedies = [change.remedy for change in trial.effective if change.remedy]
    options = [word for remedy in remedies for word in ("--with", remedy)]
    return shlex.join(["wtrain", "run", *options, "--", *core.command_of(command, trial.effective)])


def _where(trial: core.Trial) -> str:
    step = "before the first step" if trial.step is None else step_words(trial.step)
    if trial.crash is not None:
        return clean(crash_words(trial.crash, trial.step), _CAP)
    if trial.place is None:
        return step
    line = f":{trial.place.line}" if trial.place.line else ""
    return f"{clean(trial.place.file, _CAP)}{line}, {step}"
