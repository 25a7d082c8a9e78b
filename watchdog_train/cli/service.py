"""`wtrain service`: the file by which systemd or launchd starts a run and keeps it watched."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from watchdog_train.cli.policy_options import (
    flags_again,
    policy_from,
    policy_options,
    wtrain_words,
)
from watchdog_train.errors import WtrainError

if TYPE_CHECKING:
    from watchdog_train.service.units import Service

Kind = Literal["systemd", "launchd"]
KINDS: tuple[Kind, ...] = ("systemd", "launchd")
ALWAYS = ("PATH", "LANG")
"""Variables that a service gets as they are here; the others would be a guess, or a secret."""


@click.command(
    short_help="Write a systemd unit or launchd file for a run.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="launchd" if sys.platform == "darwin" else "systemd",
    help="For which manager of services.",
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME",
    help="A variable of yours that the run needs, with its present value.  [may be repeated]",
)
@click.option("--write", is_flag=True, help="Write it to where your services are; else print it.")
@policy_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def service(
    *, kind: Kind, variables: tuple[str, ...], write: bool, command: tuple[str, ...], **flags: Any
) -> None:
    """Print a file that runs `wtrain run COMMAND` from this directory as a service of yours.

    Its flags are those of run. The training outlives wtrain: started again by the manager, wtrain
    goes on with the training that lives. After logout it lives on only with lingering (systemd).
    """
    from watchdog_train.service.units import launchd_plist, systemd_unit
    from watchdog_train.supervisor.command import check_command

    policy = policy_from(flags).policy
    check_command(command)
    made = _service(policy.name, variables, flags, command)
    text = systemd_unit(made) if kind == "systemd" else launchd_plist(made)
    if not write:
        click.echo(text, nl=False)
        return
    path = _place(kind, made.label)
    _write(path, text)
    click.echo(f"wtrain: written to {path}; next:", err=True)
    for line in _next(kind, made.label, path):
        click.echo(f"  {line}", err=True)


def _service(
    name: str | None,
    variables: Iterable[str],
    flags: Mapping[str, Any],
    command: tuple[str, ...],
) -> Service:
    from watchdog_train.service.units import Service
    from watchdog_train.store.run_directory import name_from_command

    missing = [one for one in variables if one not in os.environ]
    if missing:
        raise WtrainError(
            f"not set here: {', '.join(missing)[:200]}",
            hint="export it first, or leave --env out",
            reference="service-variable-unset",
        )
    wanted = (*ALWAYS, *variables)
    return Service(
        name=name or name_from_command(command),
        argv=[*wtrain_words(), "run", *flags_again(flags), "--", *command],
        cwd=os.getcwd(),
        environment={one: os.environ[one] for one in wanted if one in os.environ},
    )


def _place(kind: Kind, label: str) -> Path:
    if kind == "launchd":
        return Path.home() / "Library" / "LaunchAgents" / f"{label}.plist"
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / f"{label}.service"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise WtrainError(
                "another file is there already",
                context=str(path),
                hint="remove it, or give this one another --name",
                reference="service-exists",
            )
        # It may hold the values of variables that the user named: a token, say.
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WtrainError(
            f"it cannot be written: {error.strerror}",
            context=str(path),
            hint="without --write it is printed",
            reference="service-unwritable",
        ) from error


def _next(kind: Kind, label: str, path: Path) -> tuple[str, ...]:
    if kind == "launchd":
        return (f"launchctl bootstrap gui/$(id -u) {shlex.quote(str(path))}",)
    return (
        "systemctl --user daemon-reload",
        f"systemctl --user start {label}",
        "loginctl enable-linger    # or it ends when you log out",
    )
