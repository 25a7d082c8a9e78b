"""Bundles: `wtrain stalls` lists those of a run, `wtrain show` prints one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog_train.cli.log_files import modified_at
from watchdog_train.cli.options import json_option, run_argument, runs_dir_option
from watchdog_train.cli.reading import read_run
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.diagnosis.places import Group, groups
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.bundle import (
    VERDICT_FILE,
    Bundle,
    BundleMachine,
    bundle_folders,
    bundles_in,
)
from watchdog_train.evidence.machines import read_whole
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.evidence_text import group_text, stacks_text, summary, title
from watchdog_train.report.explanation_text import sentences, who_words
from watchdog_train.report.facts import caught_sentence, what_followed
from watchdog_train.report.screen_text import one_screen
from watchdog_train.report.words import clean, clock_time, ranks_text
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import RunDirectory, default_runs_dir, original_of, runs_in
from watchdog_train.trusted_files import distrusted


def stall_folder(stall: str | None, run_ref: str | None, runs_dir: Path | None) -> Path:
    """The folder of a bundle; WtrainError: there is no such stall, or no bundle."""
    if stall is not None and (Path(stall) / VERDICT_FILE).is_file():
        return Path(stall)
    if stall is None and run_ref is None:
        newest = _newest_here(runs_dir or default_runs_dir())
        if newest is not None:
            return newest
    is_id = stall is not None and stall.isdigit()
    run = resolve(run_ref if is_id or stall is None else stall, runs_dir)
    if is_id and stall is not None:
        folder = run.stall(stall.zfill(4))
        if (folder / VERDICT_FILE).is_file():
            return folder
        known = ", ".join(path.name for path in bundle_folders(run.stalls)) or "none"
        raise WtrainError(
            f"there is no stall {stall}",
            context=str(run.path),
            hint=f"there are: {known}",
            reference="stall-unknown",
        )
    folders = bundle_folders(run.stalls)
    if not folders:
        raise WtrainError(
            "nothing was caught in this run",
            context=str(run.path),
            hint="wtrain dump takes evidence now",
            reference="stall-unknown",
        )
    return folders[-1]


def _newest_here(place: Path) -> Path | None:
    """The newest dump of a foreign process, if the newest run has nothing newer."""
    dumps = [folder for path in place.glob("pid-*/stalls") for folder in bundle_folders(path)[-1:]]
    newest = max(dumps, key=lambda folder: modified_at(folder / VERDICT_FILE), default=None)
    if newest is None:
        return None
    at = modified_at(newest / VERDICT_FILE)
    for run in runs_in(place)[-1:]:
        ours = [run.path / "config.yaml", *(f / VERDICT_FILE for f in bundle_folders(run.stalls))]
        if any(modified_at(path) > at for path in ours):
            return None
    return newest


def read_or_refuse(folder: Path) -> Bundle:
    """The bundle in this folder; WtrainError: it cannot be read."""
    bundle = read_whole(folder)
    if bundle is None:
        raise WtrainError(
            "this bundle cannot be read", context=str(folder), reference="bundle-unreadable"
        )
    if (foreign := distrusted(os.stat(folder))) is not None:
        echo(f"wtrain: {folder}: {foreign}; it is only read", err=True)
    return bundle


@click.command()
@run_argument
@runs_dir_option
@json_option
def stalls(*, run_ref: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """List what was caught: stalls, crashes and dumps on request."""
    run = resolve(run_ref, runs_dir)
    rows = [_row(path, bundle) for path, bundle in bundles_in(run.stalls)]
    if as_json:
        print_json(stalls=rows)
        return
    if run_ref is None:
        echo(f"wtrain: run {run.run_id}", err=True)
    for row in rows:
        at = clock_time(row["at"])
        found = " ".join(row[name] for name in ("what", "cause") if row[name])
        echo(
            f"{row['id']}  {at}  attempt {row['attempt']}  {row['why']}: {found}"
            f"  ({row['captured']} of {row['processes']} captured)"
        )
    if not rows:
        echo("nothing was caught", err=True)


def _row(path: Path, bundle: Bundle) -> dict[str, Any]:
    verdict, found = bundle.verdict, bundle.explanation
    what = caught_sentence(verdict.crash, found) or None
    cause = found.family if found is not None else None
    if what is None:
        cause = "cause unknown"
    return {
        "id": verdict.id,
        "dir": os.path.abspath(path),
        "at": verdict.at,
        "attempt": verdict.attempt,
        "why": verdict.why,
        "processes": len(verdict.processes),
        "captured": sum(process.captured for process in verdict.processes),
        "what": what,
        "cause": cause,
        "crash": msgspec.to_builtins(verdict.crash),
        "family": found.family if found is not None else None,
    }


_FRAMES_ALL = 20


@click.command()
@click.argument("stall", required=False)
@click.option("--run", "run_ref", metavar="RUN", help="Show a stall of this run.")
@click.option("--all", "everything", is_flag=True, help="The full summary and all stack groups.")
@click.option("--rank", type=click.IntRange(min=0), help="Full stacks of this rank's processes.")
@click.option("--raw", is_flag=True, help="Full stacks of every process, helpers included.")
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
    """The verdict with later results, by the log of the run."""
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
                "who": [who_words(process.who) for process in group.processes],
                "pids": [process.pid for process in group.processes],
                "idle": group.idle,
                "frames": [str(frame) for frame in group.frames],
            }
            for group in found
        ],
    }
