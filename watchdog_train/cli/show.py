"""`wtrain show`: one bundle on one screen; with options all of it, the odd one first."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from watchdog_train.cli.bundles import read_or_refuse, stall_folder
from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, runs_dir_option
from watchdog_train.cli.reading import read_run
from watchdog_train.cli.screen import echo
from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.diagnosis.places import Group, groups
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.bundle import Bundle, BundleMachine
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.evidence_text import group_text, stacks_text, summary, title
from watchdog_train.report.explanation_text import sentences
from watchdog_train.report.facts import what_followed
from watchdog_train.report.screen_text import one_screen
from watchdog_train.report.words import clean, ranks_text
from watchdog_train.store.copies import original_of
from watchdog_train.store.run_paths import RunDirectory

_FRAMES_ALL = 20


@click.command()
@click.argument("stall", required=False)
@click.option("--run", "run_ref", metavar="RUN", help="The run whose stall is meant.")
@click.option("--all", "everything", is_flag=True, help="All of the summary, all groups of stacks.")
@click.option("--rank", type=click.IntRange(min=0), help="Whole stacks of this rank's processes.")
@click.option("--raw", is_flag=True, help="Whole stacks of every process, helpers included.")
@runs_dir_option
@json_option
def show(
    *,
    stall: str | None,
    run_ref: str | None,
    everything: bool,
    rank: int | None,
    raw: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Show STALL (an id, a RUN or a folder; default: the newest): who was stuck, where and why."""
    folder = stall_folder(stall, run_ref, runs_dir)
    bundle = read_or_refuse(folder)
    found = groups(bundle.evidence, bundle.explanation)
    if as_json:
        print_json(**_answer(folder, bundle, found))
        return
    original = original_of(folder.parent.parent)
    echo(f"wtrain: {folder}" + (f", a copy of {original}" if original else ""), err=True)
    told = (_with_outcome(folder, bundle.verdict), bundle.explanation, bundle.evidence)
    if not (everything or raw or rank is not None):
        machines = [machine_words(one) for one in bundle.machines]
        echo(one_screen(*told, remedy_words=remedy_words(), machines=machines))
        return
    echo(summary(*told, remedy_words=remedy_words()))
    if everything:
        echo(group_text(found, frames=_FRAMES_ALL))
    if raw or rank is not None:
        for process in bundle.evidence.processes:
            if rank is None or process.rank == rank:
                echo(stacks_text(process))


def _with_outcome(folder: Path, verdict: BundleVerdict) -> BundleVerdict:
    """What was done since, from the run's log, in place of what was planned then."""
    run = RunDirectory(folder.absolute().parent.parent)
    with suppress(WtrainError, OSError):
        state = read_run(run).state
        stall = next((one for one in state.stalls if one.id == verdict.id), None)
        done = what_followed(stall, state) if stall is not None else None
        if done is not None:
            return msgspec.structs.replace(verdict, done=(done,))
    return verdict


def machine_words(machine: BundleMachine) -> str:
    """`node1 (gpu-11): ranks 8-15`."""
    host = f" ({clean(machine.hostname, 64)})" if machine.hostname else ""
    ranks = ranks_text(machine.ranks) if machine.ranks else "no rank"
    return f"{clean(machine.name, 40) or 'the leader'}{host}: {ranks}"


def _answer(folder: Path, bundle: Bundle, found: tuple[Group, ...]) -> dict[str, object]:
    return {
        "dir": os.path.abspath(folder),
        "what": title(bundle.verdict),
        "verdict": bundle.verdict,
        "machines": bundle.machines,
        "explanation": bundle.explanation,
        "sentences": sentences(bundle.explanation) if bundle.explanation is not None else (),
        "groups": [
            {
                "who": [process.label for process in group.processes],
                "pids": [process.pid for process in group.processes],
                "idle": group.idle,
                "frames": [str(frame) for frame in group.frames],
            }
            for group in found
        ],
    }
