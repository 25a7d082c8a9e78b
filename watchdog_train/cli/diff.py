"""`wtrain diff`: what moved between two bundles."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import click

from watchdog_train.cli.bundles import read_or_refuse, stall_folder
from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, runs_dir_option
from watchdog_train.core.diagnosis.difference import Change, difference
from watchdog_train.evidence.bundle import Bundle

_SHOWN = 20
_WORDS = {
    "moved": "moved",
    "gone": "is gone",
    "new": "is new",
    "unknown": "cannot be compared",
    "same": "is at the same place",
}


@click.command("diff")
@click.argument("before", metavar="STALL")
@click.argument("after", metavar="STALL")
@click.option("--run", "run_ref", metavar="RUN", help="The run whose stalls are meant.")
@click.option("--all", "everything", is_flag=True, help="Processes at the same place, too.")
@runs_dir_option
@json_option
def diff(
    *,
    before: str,
    after: str,
    run_ref: str | None,
    everything: bool,
    runs_dir: Path | None,
    as_json: bool,
) -> None:
    """Compare two bundles (ids or folders): what moved, what is gone, what did not move.

    A stack that moved proves life. One that did not proves nothing: a long step looks the same.
    """
    folders = [stall_folder(name, run_ref, runs_dir) for name in (before, after)]
    first, second = (read_or_refuse(folder) for folder in folders)
    changes = difference(first.evidence, second.evidence)
    same = _same_fingerprint(first, second)
    if as_json:
        print_json(
            before=os.path.abspath(folders[0]),
            after=os.path.abspath(folders[1]),
            seconds_apart=round(second.verdict.at - first.verdict.at, 3),
            same_fingerprint=same,
            families=[_family(first), _family(second)],
            processes=changes,
        )
        return
    for folder in folders:
        click.echo(f"wtrain: {folder}", err=True)
    click.echo("\n".join(_lines(first, second, changes, same=same, everything=everything)))


def _same_fingerprint(first: Bundle, second: Bundle) -> bool | None:
    prints = (first.verdict.fingerprint, second.verdict.fingerprint)
    return None if None in prints else prints[0] == prints[1]


def _family(bundle: Bundle) -> str | None:
    return bundle.explanation.family if bundle.explanation else None


def _lines(
    first: Bundle,
    second: Bundle,
    changes: tuple[Change, ...],
    *,
    same: bool | None,
    everything: bool,
) -> list[str]:
    apart = second.verdict.at - first.verdict.at
    attempts = (first.verdict.attempt, second.verdict.attempt)
    when = "" if attempts[0] == attempts[1] else f", attempts {attempts[0]} and {attempts[1]}"
    lines = [f"{apart:.0f} s apart{when}"]
    causes = [_family(bundle) or "cause unknown" for bundle in (first, second)]
    if same:
        lines.append(f"the same hang, by its fingerprint: {causes[1]}")
    elif causes[0] == causes[1]:
        lines.append(f"the same cause at another place: {causes[1]}")
    else:
        lines.append(f"was: {causes[0]}; is: {causes[1]}")
    counts = Counter(change.what for change in changes)
    told = [f"{number} {_WORDS[what].removeprefix('is ')}" for what, number in counts.items()]
    lines.append(f"processes: {', '.join(told)}")
    if changes and counts["moved"] + counts["new"] + counts["gone"] == 0:
        lines.append("nothing moved: that proves no hang, a long step looks the same")
    shown = [change for change in changes if everything or change.what != "same"]
    for change in shown[: None if everything else _SHOWN]:
        lines += ["", *_change_lines(change)]
    if not everything and len(shown) > _SHOWN:
        lines.append(f"and {len(shown) - _SHOWN} more; --all shows them")
    return lines


def _change_lines(change: Change) -> list[str]:
    pids = {pid for pid in (change.before_pid, change.after_pid) if pid is not None}
    pid = f" (pid {', then '.join(map(str, sorted(pids)))})" if pids else ""
    lines = [f"{change.who}{pid} {_WORDS[change.what]}"]
    if change.before is not None:
        lines.append(f"  before: {change.before}{_state(change.before_state)}")
    if change.after is not None and change.what != "same":
        lines.append(f"  after:  {change.after}{_state(change.after_state)}")
    return lines


def _state(state: str | None) -> str:
    return f", state {state}" if state else ""
