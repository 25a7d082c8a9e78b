"""`wtrain run`: parse, check, hand over to the supervisor, exit with its code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.cli.screen import echo

if TYPE_CHECKING:
    from watchdog_train.supervisor.setup import RunSession


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@policy_options
@click.option("-d", "--detach", is_flag=True, help="Return once launched; survives logout.")
@click.option(
    "--until-first-step",
    is_flag=True,
    help="With -d: return when a step was made; most hangs come before it.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def run(detach: bool, until_first_step: bool, command: tuple[str, ...], **flags: Any) -> None:
    """Start COMMAND as a child process and watch it until it exits.

    On a hang wtrain takes stack dumps of every process, kills the training, and restarts it from
    the newest valid checkpoint with safer settings.
    """
    from watchdog_train.remedies.catalogue import refuse_unknown
    from watchdog_train.supervisor.command_check import check_command
    from watchdog_train.supervisor.start import start_run

    if until_first_step and not detach:
        raise click.UsageError("--until-first-step goes with -d")
    loaded = policy_from(flags)
    refuse_unknown(loaded.policy)
    if loaded.policy.notify.urls:
        from watchdog_train.notify import refuse_unusable

        refuse_unusable(loaded.policy.notify.urls)
    check_command(command, loaded.policy.recovery.resume_arg)
    options = _options(command)

    def supervise(launched: Callable[[RunSession], None] | None) -> RunSession:
        return start_run(loaded.policy, command, options=options, on_launched=launched)

    if not detach:
        for source in loaded.sources:
            echo(f"wtrain: settings from {source}", err=True)
    code, run_dir = supervised(supervise, detach=detach)
    if until_first_step and run_dir is not None:
        from watchdog_train.cli.attach import until_first_step as stay
        from watchdog_train.store.run_directory import resolve

        code = stay(resolve(run_dir))
    sys.exit(code)


def supervised(
    supervise: Callable[[Callable[[RunSession], None] | None], RunSession], *, detach: bool
) -> tuple[int, str | None]:
    """Run a session here to its end, or in the background until its first attempt runs.

    Returns the exit code, and the run directory of a session in the background.
    """
    if not detach:
        session = supervise(None)
        session.close_with_words()
        return session.exit_code, None
    from watchdog_train.supervisor.detach import in_background

    report = in_background(supervise)
    echo(report.words, err=report.run_dir is None)
    return report.code, report.run_dir


def _options(command: tuple[str, ...]) -> tuple[str, ...]:
    """The options between `run` and the command, without secrets and without --detach."""
    from watchdog_train.evidence.redact import redact_argv

    given = sys.argv[1 : len(sys.argv) - len(command)]
    given = given[given.index("run") + 1 :] if "run" in given else []
    left_out = ("--", "-d", "--detach", "--until-first-step")
    return redact_argv([one for one in given if one not in left_out])


_HELP = """Print a new key for a job of several machines.

Put this into the job's script, before its first task starts:

\b
export WTRAIN_JOB_KEY=$(wtrain key)
"""


@click.command(help=_HELP)
def key() -> None:
    """The leader of a job accepts only machines that have the key."""
    import secrets

    echo(secrets.token_hex(32))
