#!/usr/bin/env python3
"""Write what is derived from the code: six pages of docs/, and configs/*.yaml.

With --check nothing is written, and the exit code is 1 when a file is not current.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import get_args

from library_page import library_page
from reference_pages import (
    cli_page,
    config_page,
    families_page,
    preset_file,
    remedies_page,
)

from watchdog_train.config.presets import PRESETS
from watchdog_train.core import events

REPOSITORY = Path(__file__).resolve().parent.parent

EVENTS_HEAD = """\
# Event log

<!-- Written by scripts/generate_docs.py from watchdog_train/core/events. -->

`events.jsonl` in the run directory is the only truth about a run: status and report are derived
from it alone. One compact JSON object a line:

```
{"type":"stall_recovered","v":1,"seq":17,"t":1795212345.1,"mono":8123.4,"attempt":2,"stall_id":"0001","why":{"code":"progress-before-kill"}}
```

- A line is written with one system call. The types marked *durable* are on disk (fsync) before
  wtrain goes on; the others follow within moments.
- `seq` has no gaps, also when another supervisor has adopted the run. A gap or a damaged line is
  an error that every reader says out loud.
- Bytes after the last newline are a line that was being written when the supervisor was killed.
  Readers drop and report them; the next supervisor moves them to `events.jsonl.torn-<n>`.
- While the disk is full or does not answer, events wait in a spill file in local memory, and
  `log_behind` tells. They move into the log in order.
- *intent* marks a type that is written before the thing is done; a new supervisor settles an open
  intent by looking.
- A reason (`why`, `warning`, `error`) is a code and the values it speaks of, not a sentence.
  `--json` and the commands of `--on` get the sentence beside them, as `text`.
- A line has at most 1 MiB; a text that would not fit is cut and says so. Readers refuse a log of
  more than 1 GiB.
- Names are stable: a new version may add types and optional fields, and raises `v` otherwise.

Beats are not events: they are words in shared memory. `phase_changed` and `progress` are samples.
"""


def events_page() -> str:
    """docs/events.md."""
    found: dict[str, ast.ClassDef] = {}
    for module in sorted(Path(events.__file__).parent.glob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        found |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    told = [each.__name__ for each in get_args(events.AnyEvent)]
    classes = {name: found[name] for name in (*told, *sorted(found.keys() - set(told)))}
    durable = {each.__name__ for each in events.LIFECYCLE}
    lines = [EVENTS_HEAD, "## In every event", ""]
    lines += _fields(classes["Event"])
    lines += ["", "## In events of one machine", "", *_fields(classes["TreeEvent"])]
    bases = {"Event", "TreeEvent"}
    types = {node.name for node in classes.values() if bases & {*_bases(node)}} - bases
    for name, node in classes.items():
        if name not in types:
            continue
        text = " ".join((ast.get_docstring(node) or "").split())
        intent = text.startswith("Intent")
        text = text.removeprefix("Intent").lstrip(".: ")
        of_one = _bases(node) == ["TreeEvent"]
        known = (("durable", name in durable), ("intent", intent), ("of one machine", of_one))
        marks = [word for word, true in known if true]
        lines += ["", f"## {tag(name)}", ""]
        sentence = text[:1].upper() + text[1:]
        about = " ".join(
            part for part in (f"*{', '.join(marks)}*" if marks else "", sentence) if part
        )
        lines += [about, ""] if about else []
        lines += _fields(node) or ["No fields of its own."]
    lines += ["", "## Values", "", *_values({*classes} - types - bases, classes)]
    return "\n".join(lines).rstrip() + "\n"


def tag(name: str) -> str:
    """The `type` of an event class."""
    value = getattr(events, name).__struct_config__.tag
    return str(value)


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base) for base in node.bases]


def _fields(node: ast.ClassDef) -> list[str]:
    rows = []
    for each, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        kind = ast.unparse(each.annotation).removesuffix(" | msgspec.UnsetType")
        kind = kind.replace("|", "\\|")
        named = [word.value for word in getattr(each.value, "keywords", []) if word.arg == "name"]
        name = named[0].value if named else each.target.id  # type: ignore[attr-defined]
        required = "yes" if each.value is None or node.name == "Event" else "no"
        rows.append(f"| `{name}` | `{kind}` | {required} | {text} |")
    return ["| field | type | required | |", "|---|---|---|---|", *rows] if rows else []


def _values(names: set[str], classes: dict[str, ast.ClassDef]) -> list[str]:
    lines = [
        "Other values (`Plan`, `Member`, `Explanation`, ...) are the structs of",
        "`watchdog_train/core/model/`, field by field.",
    ]
    for name in sorted(names):
        lines += ["", f"### {name}", "", *_fields(classes[name])]
    return lines


def pages() -> dict[Path, str]:
    """Every derived file with its content."""
    found = {
        REPOSITORY / "docs" / "config.md": config_page(),
        REPOSITORY / "docs" / "events.md": events_page(),
        REPOSITORY / "docs" / "cli.md": cli_page(),
        REPOSITORY / "docs" / "remedies.md": remedies_page(),
        REPOSITORY / "docs" / "families.md": families_page(),
        REPOSITORY / "docs" / "frameworks.md": library_page(),
    }
    for name in PRESETS:
        found[REPOSITORY / "configs" / f"{name}.yaml"] = preset_file(name)
    return found


def main() -> int:
    """Write, or check."""
    stale = [path for path, text in pages().items() if _read(path) != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is not current: run scripts/generate_docs.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
