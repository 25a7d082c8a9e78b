"""`wtrain key`: a new key for a job of several machines."""

from __future__ import annotations

import click

_HELP = """Print a new key for a job of several machines.

Put this into the job's script, before its first task starts:

\b
export WTRAIN_JOB_KEY=$(wtrain key)
"""


@click.command(help=_HELP)
def key() -> None:
    """Where machines meet, only who has the key is heard."""
    import secrets

    from watchdog_train.cli.screen import echo

    echo(secrets.token_hex(32))
