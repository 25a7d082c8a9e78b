"""The pages that scripts/generate_docs.py derives: docs/cli.md, docs/remedies.md, docs/families.md.

Text in, text out: nothing is written here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from watchdog_train import errors
from watchdog_train.cli import group
from watchdog_train.config import load, schema
from watchdog_train.config.presets import PRESETS
from watchdog_train.config.text import dump_policy, in_order, scalar
from watchdog_train.core.recovery.ladder import FALLBACK
from watchdog_train.core.recovery.remedies import EVERYWHERE, RemedySpec
from watchdog_train.explain.cause import OBJECTS, SIGNALS, Family
from watchdog_train.explain.families import known_families
from watchdog_train.explain.messages import MESSAGES
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.remedies.user_fixes import ALWAYS, USER_FIXES

CLI_HEAD = """\
# Commands

<!-- Written by scripts/generate_docs.py from watchdog_train/cli/. -->

`wtrain COMMAND --help` shows the same. `python -m watchdog_train` is another way to write
`wtrain`. A flag wins over its variable, a variable over the settings file. Times take `90`,
`90s`, `10m` or `2h`. RUN is an id, the beginning of one, a name, or a path; see
[run directory](run-directory.md). With `--json`, data goes to stdout and words to stderr, and the
object has a `schema_version`.
"""

EXIT_CODES = """\
## Exit codes

Of `run` and `adopt`:

| code | meaning |
|---|---|
| {success} | the training succeeded; with a warning where only its exit hung |
| the child's | it failed and no restart was due; 128 + N when signal N ended it |
| {bug} | a bug of wtrain; the training lives on under its keeper, `wtrain adopt` takes it up |
| {retry} | stalled or trouble with the machine, no restart allowed here: worth retrying elsewhere |
| {gave_up} | gave up: the restarts are spent, attempts make no progress, or one did not resume |
| {stopped} | stopped on request |
| {refused} | bad settings or usage, command not found, over 900 KB or not UTF-8, or refused |
| {interrupted} | Ctrl-C |

A child's own 75 to 78 passes through; `wtrain status` tells which it was. `wtrain status` itself
ends with 0 while the run is supervised, 3 when it has ended, 4 when its supervisor is dead or out
of reach. Every other command ends with 0, or with 78 and the reason.
"""

REMEDIES_HEAD = """\
# Remedies

<!-- Written by scripts/generate_docs.py from watchdog_train/remedies/. -->

A remedy is one safer setting. A restart applies what the explanation names, one remedy at a time;
`wtrain remedies` lists the same. Three kinds:

- *execution*: how the training runs. Applied by itself. What each may still change in a result is
  said below.
- *training*: what is trained (batch, evaluation, length). Only with `--allow training` or
  `--allow ID`.
- *device*: which device computes. Applied where the explanation names the device.

What `--allow` names of the last two, or its kind, is tried even where nothing calls for it: after
what does, and one at a time. `subset` is tried only where it is named itself.

`--with ID` applies one from the first attempt, `--without ID` forbids one. Settings made inside the
process, and variables that reached it, are reported back: `status` says "in effect" or "NOT in
effect". Whatever was changed is in the plan of the attempt and in the report, with the line that
makes it permanent. A remedy with which training crashes before its first step, or with which steps
take three times as long and training comes no further, is taken back.
"""

FAMILIES_HEAD = """\
# Families of causes

<!-- Written by scripts/generate_docs.py from watchdog_train/explain/families and messages.py. -->

A family is one cause of hangs or crashes: what is known about such a root. It may refine what was
observed, never contradict it. "I do not know" is an answer, too. A cause is proven, likely or
possible; of several that fit, the most certain one is named, and of equally certain ones the first
in this list. [How to write one](plugins.md).
"""


def cli_page() -> str:
    """docs/cli.md."""
    lines = [CLI_HEAD.rstrip()]
    whole = group.build_group()
    # With the settings of the real thing: click keeps the help option that is made first.
    with click.Context(whole, info_name="wtrain", **whole.context_settings) as top:
        for section in group.SECTIONS:
            lines += ["", f"## {section}"]
            for name, row in group.COMMANDS.items():
                command = group.WtrainGroup().get_command(top, name)
                if row.section == section and command is not None:
                    lines += _command(command, name, top)
    codes = EXIT_CODES.format(
        success=errors.EXIT_SUCCESS,
        bug=errors.EXIT_OUR_BUG,
        retry=errors.EXIT_RETRY_ELSEWHERE,
        gave_up=errors.EXIT_GAVE_UP,
        stopped=errors.EXIT_STOPPED,
        refused=errors.EXIT_REFUSED,
        interrupted=errors.EXIT_INTERRUPTED,
    )
    return "\n".join([*lines, "", codes])


def _command(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as context:
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield from ("", f"### {context.command_path}", "", f"`{' '.join(usage.split())}`", "")
        yield _plain(inspect.cleandoc(command.help or ""))
        rows = [
            (record[0], record[1], parameter.envvar)
            for parameter in command.params
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(context)) is not None
        ]
        if rows:
            yield from ("", "| flag | variable | |", "|---|---|---|")
        for flag, text, variable in rows:
            shown = f"`{variable}`" if variable else ""
            yield f"| `{_cell(flag)}` | {shown} | {_cell(text)} |"
        if isinstance(command, click.Group):
            for below in sorted(command.commands):
                yield from _command(command.commands[below], below, context)


def _plain(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def remedies_page() -> str:
    """docs/remedies.md."""
    lines = [REMEDIES_HEAD.rstrip(), "", "## What wtrain can apply"]
    for remedy in CATALOGUE.values():
        lines += _remedy(remedy)
    lines += ["", "## When the cause is not known", ""]
    lines += [
        "A hang whose cause is unknown gets a plain restart first. If it hangs again without",
        f"progress, wtrain tries fallback settings: {', '.join(f'`{name}`' for name in FALLBACK)}.",
        "It leaves out a setting that would change nothing: no DataLoader worker, or one thread.",
        "They are experiments: wtrain never recommends to keep them.",
    ]
    lines += ["", "## What every attempt has by itself", "", "| id | what is done |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in sorted(ALWAYS.items())]
    lines += ["", "## What only you can mend", "", "| id | what to do |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in sorted(USER_FIXES.items())]
    return "\n".join(lines) + "\n"


def _remedy(remedy: RemedySpec) -> Iterator[str]:
    yield from ("", f"### {remedy.id}", "")
    how = "where the explanation names the device" if remedy.kind == "device" else "by itself"
    if remedy.needs_allow or remedy.kind == "training":
        how = "only with `--allow`"
    once = "; for one attempt only" if remedy.evidence_only else ""
    yield f"*{remedy.kind}, {how}{once}*: {remedy.summary}."
    yield ""
    if remedy.env:
        sets = " ".join(f"{name}={value}" for name, value in remedy.env.items())
        yield f"- sets: `{sets}`"
    if remedy.number:
        yield f"- number: `--with {remedy.id}=N`; {remedy.number} unless given"
    if remedy.precondition:
        yield f"- when: {remedy.precondition}"
    yield f"- changes: {remedy.changes}"
    yield f"- may break: {remedy.may_break}"
    if remedy.platforms != EVERYWHERE:
        yield f"- only on: {', '.join(remedy.platforms)}"
    if remedy.script_line:
        yield f"- for good: `{' / '.join(remedy.script_line.splitlines())}`"


def families_page() -> str:
    """docs/families.md."""
    lines = [FAMILIES_HEAD.rstrip()]
    for one in known_families():
        lines += _family(one)
    return "\n".join(lines) + "\n"


def _family(one: Family) -> Iterator[str]:
    yield from ("", f"## {one.id}", "", f"A {one.kind}. {one.says}", "")
    yield f"- remedies, in order: {', '.join(f'`{name}`' for name in one.remedies) or 'none'}"
    objects = ", ".join(f"`{each}`" for each in one.of if each in (*OBJECTS, *SIGNALS))
    if objects:
        yield f"- may explain a root in: {objects}"
    if one.link:
        yield f"- known from: <{one.link}>"
    for row in MESSAGES:
        if row.family == one.id:
            yield f"- {row.certainty} by the message `{row.pattern}`"


def config_page() -> str:
    """docs/config.md."""
    lines = [
        "# Settings",
        "",
        "<!-- Written by scripts/generate_docs.py from watchdog_train/core/policy. -->",
        "",
        "A run takes its settings from, later ones winning: the defaults, `--preset NAME`,",
        "`--config FILE` (or `wtrain.yaml` in the working directory), `WTRAIN_...` variables,",
        "flags. A `wtrain.yaml` that was only found must be [yours](run-directory.md#other-users).",
        "`wtrain config show` prints the outcome, `wtrain config check FILE` names every",
        "problem of a file at once, `wtrain config explain KEY` says what one setting is.",
        "Presets:",
        "",
        *(f"- `{name}`: {preset.text}" for name, preset in PRESETS.items()),
        "",
    ]
    for key, section in in_order(with_root=True):
        if section is not None:
            if key.count(".") < 2:
                lines += ["", f"## {key or 'Top level'}", "", f"{section}", ""]
                lines += ["| key | value | default | what and why |", "|---|---|---|---|"]
            continue
        setting = schema.settings()[key]
        wanted = setting.wanted + (f" ({setting.flag})" if setting.flag else "")
        text = setting.text
        parent = key.rpartition(".")[0]
        if parent.count(".") >= 2:
            text = f"{schema.sections()[parent]}; {text}"
        lines.append(f"| `{key}` | {wanted} | `{scalar(setting.default)}` | {text} |")
    return "\n".join(lines) + "\n"


def preset_file(name: str) -> str:
    """The complete file of a preset."""
    preset = PRESETS[name]
    return dump_policy(
        load(None, name, directory=Path(__file__).parent).policy,
        heading=f"Preset '{name}'. {preset.text} Use: wtrain run --preset {name} -- COMMAND",
        reasons={key: why for key, (_, why) in preset.changes.items()},
    )
