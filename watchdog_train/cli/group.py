"""The table of commands, and a click group that imports a command's module when it is called.

Must not import a command: `wtrain --help` is written from the table alone.
"""

from __future__ import annotations

import importlib
import os
from typing import Literal, NamedTuple

import click

from watchdog_train.client import layout

Section = Literal["Run", "Look", "Understand", "Prepare"]
SECTIONS: tuple[Section, ...] = ("Run", "Look", "Understand", "Prepare")


class CommandRow(NamedTuple):
    """One command of the table; its function has its name."""

    section: Section
    help: str
    module: str = ""
    """If it differs from the command's name."""


COMMANDS = {
    "run": CommandRow("Run", "Start a training and watch over it."),
    "stop": CommandRow("Run", "Stop a run, after a save where it can be asked for one."),
    "save": CommandRow("Run", "Ask a run to save a checkpoint now."),
    "restart": CommandRow("Run", "Continue a run that has ended."),
    "adopt": CommandRow("Run", "Watch over a training whose supervisor died.", "restart"),
    "ps": CommandRow("Look", "List the runs of this machine.", "status"),
    "status": CommandRow("Look", "Say how a run is doing."),
    "logs": CommandRow("Look", "Show the output of a run."),
    "probe": CommandRow("Look", "Say whether a supervisor is alive, for a kubelet."),
    "attach": CommandRow("Look", "See a run as if it were in this terminal."),
    "stalls": CommandRow("Understand", "List what was caught: stalls and crashes.", "show"),
    "show": CommandRow("Understand", "Show one stall: who was stuck, where and why."),
    "dump": CommandRow("Understand", "Collect evidence now; nothing is killed."),
    "replay": CommandRow("Understand", "Judge a recorded trace again, with other settings."),
    "diagnose": CommandRow("Understand", "Name the cause behind dumps and logs of your own."),
    "bisect": CommandRow("Understand", "Find the smallest change that avoids a hang."),
    "report": CommandRow("Understand", "Report what happened to a run."),
    "checkpoints": CommandRow("Prepare", "List checkpoints and whether each is valid."),
    "remedies": CommandRow("Prepare", "List the safer settings wtrain knows."),
    "config": CommandRow("Prepare", "Show, check and explain settings."),
    "notify-test": CommandRow(
        "Prepare", "Send a test message to every address for notifications.", "doctor"
    ),
    "doctor": CommandRow("Prepare", "Test this machine for a long run."),
    "clean": CommandRow("Prepare", "Show and remove what ended runs have left behind."),
    "key": CommandRow("Prepare", "Print a new key for a job of several machines.", "run"),
    "demo": CommandRow("Prepare", "Watch wtrain catch a real hang, in a minute."),
}

_OF_A_TRAINING = frozenset(value for name, value in vars(layout).items() if name.startswith("ENV_"))
"""Variables in the environment of a supervised training. No flag is read from them, or `wtrain
logs` inside a training would take its attempt from there."""


class WtrainGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"watchdog_train.cli.{COMMANDS[cmd_name].module or name}")
        command: click.Command = getattr(module, name)
        command.short_help = COMMANDS[cmd_name].help
        name_variables(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a guess for a misspelled command."""
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"'{name[:60]}' is not a command{_meant(args)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for section in SECTIONS:
            rows = [(name, row.help) for name, row in COMMANDS.items() if row.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def _meant(args: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(args[0], list(COMMANDS), n=1)
    if near:
        return f"; did you mean 'wtrain {near[0]}'?"
    import shutil

    if os.path.exists(args[0]) or shutil.which(args[0]):
        words = " ".join(args)
        return f"; did you mean 'wtrain run -- {words[:120]}'?"
    return ""


def name_variables(command: click.Command) -> None:
    """Give every flag its WTRAIN_ variable, and show defaults in the help."""
    command.context_settings.setdefault("show_default", True)
    command.context_settings.setdefault("max_content_width", 100)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.envvar is None:
            names = [name for name in parameter.opts if name.startswith("--")]
            variable = "WTRAIN_" + names[0][2:].replace("-", "_").upper() if names else ""
            if variable and variable not in _OF_A_TRAINING:
                parameter.envvar = variable
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            name_variables(subcommand)


def build_group() -> click.Group:
    version = click.Option(
        ["--version"], is_flag=True, expose_value=False, help="Print the version."
    )
    return WtrainGroup(
        name="wtrain",
        params=[version],
        help=(
            "Watch over a machine-learning training: catch hangs, keep the evidence, restart from"
            " the newest valid checkpoint.\n\nStart with: wtrain run -- python train.py"
        ),
        epilog=(
            "RUN is an id, the beginning of one, a name, or a path; the default is the newest run"
            " here. Every flag is also a WTRAIN_ variable: --max-restarts is WTRAIN_MAX_RESTARTS."
        ),
        context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    )
