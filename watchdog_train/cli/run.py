"""`wtrain run`: parse, check, hand over to the supervisor, exit with its code."""

from __future__ import annotations

import sys
from typing import Any

import click

from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.cli.screen import echo


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
    """Start COMMAND as a child, watch it, and bring it to its end.

    On a hang: stack dumps of every process, then the whole tree is stopped, then a restart from
    the newest whole checkpoint with safer settings.
    """
    from watchdog_train.remedies.catalogue import available, refuse_unknown
    from watchdog_train.supervisor.command import check_command
    from watchdog_train.supervisor.detach import in_background
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
    if detach:
        report = in_background(
            lambda launched: start_run(
                loaded.policy,
                command,
                available(),
                foreground=False,
                options=options,
                on_launched=launched,
            )
        )
        echo(report.words, err=report.run_dir is None)
        if until_first_step and report.run_dir is not None:
            from watchdog_train.cli.attach import until_first_step as stay
            from watchdog_train.store.resolve import resolve

            sys.exit(stay(resolve(report.run_dir)))
        sys.exit(report.code)
    for source in loaded.sources:
        echo(f"wtrain: settings from {source}", err=True)
    session = start_run(loaded.policy, command, available(), foreground=True, options=options)
    session.close_with_words()
    sys.exit(session.exit_code)


def _options(command: tuple[str, ...]) -> tuple[str, ...]:
    """What stands between `run` and the command, without secrets and how it was started."""
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
    """Where machines meet, only who has the key is heard."""
    import secrets

    from watchdog_train.cli.screen import echo

    echo(secrets.token_hex(32))
