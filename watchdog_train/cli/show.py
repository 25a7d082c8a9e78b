"""`wtrain show`: one bundle on one screen, then its stacks, the odd one first."""

from __future__ import annotations

import os
from pathlib import Path

import click

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, runs_dir_option
from watchdog_train.core.diagnose import groups
from watchdog_train.core.idle import Group
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.bundle import VERDICT_FILE, Bundle, read_bundle
from watchdog_train.evidence.listing import bundle_folders
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.evidence_text import group_text, stacks_text, summary
from watchdog_train.store.resolve import resolve

SCHEMA_VERSION = 1
_GROUPS_SHOWN = 4


@click.command("show")
@click.argument("stall", required=False)
@click.option("--run", "run_ref", metavar="RUN", help="The run whose stall is meant.")
@click.option("--all", "everything", is_flag=True, help="All groups of stacks.")
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
    folder = _folder(stall, run_ref, runs_dir)
    bundle = read_bundle(folder)
    if bundle is None:
        raise WtrainError(
            "this bundle cannot be read", context=str(folder), reference="bundle-unreadable"
        )
    found = groups(bundle.evidence, bundle.diagnosis)
    if as_json:
        print_json(_answer(folder, bundle, found))
        return
    click.echo(f"wtrain: {folder}", err=True)
    text = summary(bundle.verdict, bundle.diagnosis, bundle.evidence, remedy_words=remedy_words())
    click.echo(text)
    if raw or rank is not None:
        for process in bundle.evidence.processes:
            if rank is None or process.rank == rank:
                click.echo(stacks_text(process))
    else:
        click.echo(group_text(found if everything else found[:_GROUPS_SHOWN]))


def _folder(stall: str | None, run_ref: str | None, runs_dir: Path | None) -> Path:
    if stall is not None and (Path(stall) / VERDICT_FILE).is_file():
        return Path(stall)
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


def _answer(folder: Path, bundle: Bundle, found: tuple[Group, ...]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "dir": os.path.abspath(folder),
        "verdict": bundle.verdict,
        "diagnosis": bundle.diagnosis,
        "groups": [
            {
                "who": group.labels,
                "pids": group.pids,
                "idle": group.idle,
                "frames": [str(frame) for frame in group.frames],
            }
            for group in found
        ],
    }
