"""No code of ours may wait for a child whose pid it does not name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import watchdog_train

PACKAGE = Path(watchdog_train.__file__).parent
ANYBODY = {"P_ALL", "P_PGID"}
WAITS_FOR_ANY = {"wait", "wait3"}  # of os
WAITS_BY_PID = {"waitpid", "wait4"}


def offences(source: str) -> list[str]:
    """Calls in it that could take the status of somebody else's child."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ANYBODY:
            found.append(f"line {node.lineno}: {node.attr}")
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        of_os = isinstance(owner, ast.Name) and owner.id == "os"
        if of_os and name in WAITS_FOR_ANY:
            found.append(f"line {node.lineno}: os.{name}()")
        if name in WAITS_BY_PID and (
            not node.args or not isinstance(node.args[0], ast.Attribute | ast.Name)
        ):
            found.append(f"line {node.lineno}: {name} of {ast.unparse(node)}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "os.waitpid(-1, os.WNOHANG)",
        "os.waitpid(0, 0)",
        "os.wait()",
        "os.wait4(-1, 0)",
        "os.waitid(os.P_ALL, 0, os.WEXITED)",
    ],
)
def test_the_rule_sees_offences(source: str) -> None:
    assert offences(source)


def test_the_rule_allows_a_named_child() -> None:
    assert not offences("os.waitpid(row.pid, os.WNOHANG); os.waitid(os.P_PID, child.pid, 0)")


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_nothing_of_ours_waits_for_anybody(path: Path) -> None:
    """A stolen status turns a failure into success."""
    assert offences(path.read_text(encoding="utf-8")) == []
