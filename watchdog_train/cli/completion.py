"""`wtrain completion`: what a shell needs to complete commands, options, runs and remedies."""

from __future__ import annotations

import click

from watchdog_train.errors import EXIT_REFUSED, EXIT_SUCCESS

SHELLS = ("bash", "zsh", "fish")
_MOST = 100


_HELP = """Print the completion of wtrain for SHELL, to be loaded by its start file.

\b
bash  eval "$(wtrain completion bash)"       in ~/.bashrc
zsh   eval "$(wtrain completion zsh)"        in ~/.zshrc
fish  wtrain completion fish | source        in ~/.config/fish/config.fish
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Click's own script for a shell, which calls us back with what is typed."""
    from watchdog_train.cli.group import build_group

    answer(build_group(), f"{shell}_source")


def answer(group: click.Command, instruction: str) -> int:
    """Give a shell its script, or the words that may stand at its cursor; an exit code."""
    from click.shell_completion import shell_complete

    from watchdog_train.cli.main import COMPLETE

    code = shell_complete(group, {}, "wtrain", COMPLETE, instruction)
    return EXIT_REFUSED if code else EXIT_SUCCESS


def runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Ids of runs that begin so, the newest first: here and on this machine."""
    from watchdog_train.store.registry import live_runs
    from watchdog_train.store.run_paths import default_runs_dir, newest_last, runs_in

    here = runs_in(context.params.get("runs_dir") or default_runs_dir())
    live = [entry.directory for entry in live_runs()]
    known = {run.run_id: run for run in (*live, *here)}
    ids = [run.run_id for run in reversed(newest_last(known.values()))]
    return [one for one in ids if one.startswith(begun)][:_MOST]


def remedies(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Ids of remedies that begin so."""
    from watchdog_train.remedies.catalogue import available

    return [one for one in sorted(available()) if one.startswith(begun)]
