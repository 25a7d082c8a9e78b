"""`wtrain notify-test`: send a message now, the way a run would."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from watchdog_train.cli.options import config_option
from watchdog_train.cli.screen import echo
from watchdog_train.config import load
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.notify.channels import Message, Order, Parcel, names, refuse_unusable
from watchdog_train.notify.send import send_all


@click.command()
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send it there.  [default: what the settings say]  [may be repeated]",
)
@config_option()
def notify_test(urls: tuple[str, ...], config_file: Path | None) -> None:
    """Send a test message to every URL; exit code 75 when one was not reached."""
    chosen = urls or load(config_file).policy.notify.urls
    if not chosen:
        raise WtrainError(
            "there is nobody to tell",
            hint="wtrain notify-test --notify URL, WTRAIN_NOTIFY, or notify.urls in wtrain.yaml",
            reference="notify-nobody",
        )
    refuse_unusable(chosen)
    message = Message(
        title="wtrain: test",
        message="This is a test. A stall, a restart and the end of a run would be told here.",
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
