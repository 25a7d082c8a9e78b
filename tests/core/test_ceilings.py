"""The project stays as small as ceilings.toml says, and the file follows when it gets smaller."""

from __future__ import annotations

import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from tests.support import REPOSITORY
from watchdog_train.cli.group import COMMANDS
from watchdog_train.config.schema import settings
from watchdog_train.core import events

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CODE = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
WRITTEN = {".py", ".yaml", ".j2", ".css", ".js", ".html"}


def files(folder: str, endings: set[str]) -> list[Path]:
    found = (REPOSITORY / folder).rglob("*")
    return [
        p for p in found if p.suffix in endings and p.is_file() and "__pycache__" not in p.parts
    ]


def lines(paths: list[Path]) -> int:
    return sum(
        bool(line.strip()) for path in paths for line in path.read_text("utf-8").splitlines()
    )


def tokens(paths: list[Path]) -> Iterator[tuple[Path, tokenize.TokenInfo]]:
    for path in paths:
        with path.open("rb") as source:
            yield from ((path, t) for t in tokenize.tokenize(source.readline) if t.type in CODE)


def counted() -> dict[str, float]:
    """Every number that has a ceiling."""
    modules = files("watchdog_train", {".py"})
    found = list(tokens(modules))
    return {
        "package.lines": lines(files("watchdog_train", WRITTEN)),
        "package.tokens": len(found),
        "package.tokens_per_line": len(found)
        / len({(path, token.start[0]) for path, token in found}),
        "package.modules": len(modules),
        "around.test_lines": lines(files("tests", {".py"})),
        "around.script_lines": lines(files("scripts", {".py", ".sh", ""})),
        "concepts.settings": len(settings()),
        "concepts.commands": len(COMMANDS),
        "concepts.events": len(get_args(events.AnyEvent)),
    }


def test_nothing_is_over_its_ceiling_and_no_ceiling_is_left_high() -> None:
    now = counted()
    table = tomllib.loads((REPOSITORY / "ceilings.toml").read_text("utf-8"))
    ceilings = {
        f"{part}.{name}": top for part, names in table.items() for name, top in names.items()
    }
    assert now.keys() == ceilings.keys()
    over = {name: (now[name], top) for name, top in ceilings.items() if now[name] > top}
    assert not over, f"over the ceiling (counted, ceiling): {over}"
    left = {
        name: (now[name], top)
        for name, top in ceilings.items()
        if name != "package.tokens_per_line" and now[name] < 0.99 * top
    }
    assert not left, f"smaller by now, lower the ceiling (counted, ceiling): {left}"
