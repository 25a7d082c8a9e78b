"""`wtrain notify-test`: send a message now, the way a run would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from watchdog_train.notify.channels import Answer


@click.command("notify-test")
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send it there.  [default: what the settings say]  [may be repeated]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings file.  [default: ./wtrain.yaml, if there is one]",
)
def notify_test(urls: tuple[str, ...], config_file: Path | None) -> None:
    """Send a test message to every URL; exit code 75 when one was not reached."""
    from watchdog_train.config import load
    from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError
    from watchdog_train.notify.channels import refuse_unusable

    chosen = urls or load(config_file).policy.notify.urls
    if not chosen:
        raise WtrainError(
            "there is nobody to tell",
            hint="wtrain notify-test --notify URL, WTRAIN_NOTIFY, or notify.urls in wtrain.yaml",
            reference="notify-nobody",
        )
    refuse_unusable(chosen)
    failed = 0
    for answer in _answers(chosen):
        failed += not answer.sent
        told = "sent" if answer.sent else f"NOT sent: {answer.why}"
        click.echo(f"{answer.channel}: {told}")
    sys.exit(EXIT_RETRY_ELSEWHERE if failed else 0)


def _answers(urls: tuple[str, ...]) -> tuple[Answer, ...]:
    """By the same code, with the same deadline, as in a run."""
    from watchdog_train.notify.channels import Message, Order, Parcel, names
    from watchdog_train.notify.send import send_all

    message = Message(
        title="wtrain: test",
        message="This is a test. A stall, a restart and the end of a run would be told here.",
        topics=("test",),
        run_id="",
    )
    told = zip(names(urls), urls, strict=True)
    parcels = tuple(Parcel(channel=name, url=url, message=message) for name, url in told)
    return send_all(Order(parcels=parcels))
