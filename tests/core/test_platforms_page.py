"""docs/platforms.md: its table of tests that need Linux, and the marks in the tests, agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support import REPOSITORY, TESTS

WORDS = {
    "needs_subreaper": "subreaper",
    "needs_tcp_bytes": "TCP bytes",
    "needs_signal_masks": "signal masks",
    "needs_exit_status_of_others": "status of others",
    "needs_open_files": "open files of others",
    "needs_cpu_wait": "time in line for a CPU",
}
ROW = re.compile(r"\| `(test_[^`]+)` \| ([^|]+?) \|")


def marked_tests() -> Iterator[tuple[str, str]]:
    """Each test, or each case of one, that carries such a mark, with the word of the page."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"mark.{name}" in text for name in WORDS):
            continue
        tree = ast.parse(text)
        of_all = _of_the_module(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield from ((node.name, word) for word in of_all)
                for decorator in node.decorator_list:
                    yield from ((f"{node.name}{case}", word) for case, word in _marks(decorator))


def _of_the_module(tree: ast.Module) -> list[str]:
    """What all tests of a module need, by its `pytestmark`."""
    return [
        WORDS[node.attr]
        for statement in tree.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Attribute) and node.attr in WORDS
    ]


def _marks(decorator: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(decorator, ast.Attribute) and decorator.attr in WORDS:
        yield "", WORDS[decorator.attr]
    for call in ast.walk(decorator):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.param"):
            continue
        for name, word in WORDS.items():
            if any(name in ast.unparse(keyword) for keyword in call.keywords):
                first = call.args[0]
                assert isinstance(first, ast.Constant), "give the case an id that a page can name"
                yield f"[{first.value}]", word


def test_the_table_and_the_marks_agree() -> None:
    """A mark without a row hides what a platform does not do; a row without a mark is untrue."""
    page = (REPOSITORY / "docs" / "platforms.md").read_text(encoding="utf-8")
    marked = sorted(marked_tests())
    assert marked
    assert sorted(ROW.findall(page)) == marked
