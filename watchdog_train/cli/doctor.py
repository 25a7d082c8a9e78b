"""Before a night: `wtrain doctor` tests this machine, `wtrain notify-test` sends a message."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from watchdog_train.cli.options import config_option, json_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import load
from watchdog_train.doctor import Check, examine
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.notify import Message, Order, Parcel, names, refuse_unusable
from watchdog_train.notify.send import send_all
from watchdog_train.report.words import clean
from watchdog_train.system import current

EXIT_FAILURES = 1
WORDS = {"ok": "OK", "warning": "WARN", "failure": "FAIL", "unknown": "?"}


@click.command()
@click.option(
    "--checkpoints",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where checkpoints go.  [default: here]",
)
@json_option
def doctor(*, checkpoints: tuple[Path, ...], as_json: bool) -> None:
    """Try stacks, heartbeats, memory, disks and GPUs; nothing is changed.

    The first line names what is not tested on this platform. Each warning says how to fix it.
    Exit code 1 when something fails.
    """
    found: list[Check] = []
    for check in examine(current(), checkpoints or (Path.cwd(),)):
        found.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json(checks=found)
    if any(check.status == "failure" for check in found):
        sys.exit(EXIT_FAILURES)


def _print(check: Check) -> None:
    echo(f"{WORDS[check.status]:4}  {clean(check.name, 80)}: {clean(check.says, 600)}")
    if check.mend:
        echo(f"      {clean(check.mend, 400)}")


@click.command()
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send it there.  [default: that of the settings]  [may be repeated]",
)
@config_option()
def notify_test(urls: tuple[str, ...], config_file: Path | None) -> None:
    """Send a test message to every URL; exit code 75 when one was not reached."""
    chosen = urls or load(config_file).policy.notify.urls
    if not chosen:
        raise WtrainError(
            "no URL for notifications is set",
            hint="wtrain notify-test --notify URL, WTRAIN_NOTIFY, or notify.urls in wtrain.yaml",
            reference="notify-nobody",
        )
    refuse_unusable(chosen)
    message = Message(
        title="wtrain: test",
        message="This is a test. A stall, a restart and the end of a run would be reported here.",
        topics=("test",),
        run_id="",
    )
    told = zip(names(chosen), chosen, strict=True)
    parcels = tuple(Parcel(channel=name, url=url, message=message) for name, url in told)
    answers = send_all(Order(parcels=parcels))
    for answer in answers:
        word = "sent" if answer.sent else f"NOT sent: {answer.why}"
        echo(f"{answer.channel}: {word}")
    sys.exit(0 if all(answer.sent for answer in answers) else EXIT_RETRY_ELSEWHERE)
