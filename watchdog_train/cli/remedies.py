"""`wtrain remedies`: the safer settings there are, what each does and what it may break."""

from __future__ import annotations

import textwrap

import click
import msgspec

from watchdog_train.cli.options import json_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.core.recovery.remedies import RemedySpec
from watchdog_train.remedies.catalogue import CATALOGUE, available
from watchdog_train.remedies.user_fixes import ALWAYS, USER_FIXES


@click.command()
@json_option
def remedies(*, as_json: bool) -> None:
    """List the remedies, what each changes, and what only you can fix."""
    here = available()
    if as_json:
        print_json(
            remedies=[
                {**msgspec.to_builtins(remedy), "available": remedy.id in here}
                for remedy in CATALOGUE.values()
            ],
            user_fixes=[{"id": name, "how": how} for name, how in USER_FIXES.items()],
            always=[{"id": name, "how": how} for name, how in ALWAYS.items()],
        )
        return
    for remedy in CATALOGUE.values():
        echo("\n".join(_lines(remedy, present=remedy.id in here)))
    echo("Set in every attempt:")
    for name, how in ALWAYS.items():
        echo(_wrapped(f"{name}: {how}"))
    echo("What only you can fix:")
    for name, how in USER_FIXES.items():
        echo(_wrapped(f"{name}: {how}"))


def _lines(remedy: RemedySpec, *, present: bool) -> list[str]:
    use = "where the device is named" if remedy.kind == "device" else "by itself"
    if remedy.needs_allow or remedy.kind == "training":
        use = "only with --allow"
    missing = "" if present else ", not on this platform"
    lines = [f"{remedy.id} ({remedy.kind}, {use}{missing}): {remedy.summary}"]
    if remedy.env:
        lines.append(_wrapped("sets: " + " ".join(f"{k}={v}" for k, v in remedy.env.items())))
    number = f"--with {remedy.id}=N; {remedy.number} unless given" if remedy.number else ""
    said = {
        "number": number,
        "when": remedy.precondition,
        "changes": remedy.changes,
        "may break": remedy.may_break,
        "for good": " / ".join(remedy.script_line.splitlines()),
    }
    lines += [_wrapped(f"{label}: {text}") for label, text in said.items() if text]
    return lines


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="    ", subsequent_indent="      ")
