"""Facts are values: a reason is a code and values, rendered once, and no code reads the words."""

from __future__ import annotations

import ast
import string
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import watchdog_train
from watchdog_train.core import events as e
from watchdog_train.core import model
from watchdog_train.core.fold import state
from watchdog_train.core.model import Why, said
from watchdog_train.report.why_text import SENTENCES, why_text, with_text

PACKAGE = Path(watchdog_train.__file__).parent
RENDERERS = {"why_text", "exit_text", "how_it_ended", "ending", "narrate", "outcome_line"}
"""Functions that return text for people; those with such a suffix, too."""
SUFFIXES = ("_words", "_sentence", "_sentences")
OTHERS = {"last_words", "_words"}
"""What a child has printed, and bytes."""
TEXT_FIELDS = {"explanation", "rendered"}
READS = {
    "split", "rsplit", "splitlines", "partition", "rpartition", "startswith", "endswith", "find",
    "index", "replace", "removeprefix", "removesuffix", "strip", "lstrip", "rstrip", "count",
}  # fmt: skip
PATTERNS = {"match", "fullmatch", "search", "findall", "finditer", "sub"}


def test_no_reason_is_a_string() -> None:
    """In what is recorded and remembered; BundleWhy is a word of a list."""
    found = [
        f"{kind.__name__}.{name}"
        for module in (e, model, state)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        for name, annotation in typing.get_type_hints(kind).items()
        if name in ("why", "because", "warning", "words") and str in _parts(annotation)
    ]
    assert set(found) <= {"Missing.why"}  # in a collector's words


def _parts(annotation: object) -> tuple[object, ...]:
    is_union = isinstance(annotation, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def test_every_code_has_one_sentence() -> None:
    for code in SENTENCES:
        assert why_text(Why(code)).strip() or code == "asked"


def test_a_code_that_a_variable_or_function_names_has_a_sentence() -> None:
    """Those that are written where a reason is made are checked with its fields, below."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            values: list[ast.expr | None] = []
            if isinstance(node, ast.AnnAssign) and "WhyCode" in ast.unparse(node.annotation):
                values = [node.value]
            elif (
                isinstance(getattr(node, "returns", None), ast.Name)
                and node.returns.id == "WhyCode"
            ):
                values = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
            named = {code for value in values if value is not None for code in _codes(value)}
            assert named <= SENTENCES.keys(), path


def test_every_code_is_used() -> None:
    used = {
        node.value
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("reasons.py", "why_text.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert SENTENCES.keys() - used == {"said"}


def test_a_reason_has_what_its_sentence_shows() -> None:
    fields = set(Why.__struct_fields__)
    for path, call in _calls("Why"):
        names = {keyword.arg for keyword in call.keywords}
        for code in _codes(call.args[0]):
            sentence = SENTENCES[code]  # every code that is made has one
            shown = {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
            derived = shown - fields
            # Those that are in it may be empty; of another name, they are made from several.
            lacking = {name for name in shown & fields if name not in names} - {"family", "because"}
            assert not lacking, f"{path}:{call.lineno}: {code} lacks {lacking} ({derived})"


def _codes(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_codes(node.body), *_codes(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) else []


def _calls(name: str) -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if called and node.func.id == name and node.args:
                yield path, node


def _is_text(node: ast.expr, names: set[str]) -> bool:
    """Whether it is rendered text, by the function that has made it, or by its name."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        is_template = isinstance(node.value, ast.Name) and node.value.id == "signature"
        return node.attr in TEXT_FIELDS and not is_template
    return isinstance(node, ast.Call) and _renders(node.func)


def _renders(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in RENDERERS or (name.endswith(SUFFIXES) and name not in OTHERS)


def readers(source: str) -> list[int]:
    """Lines that split, search or compare rendered text."""
    found = []
    tree = ast.parse(source)
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in [tree, *scopes]:
        names = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and _is_text(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if scope is tree:
            names = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                empty = any(isinstance(x, ast.Constant) and not x.value for x in sides)
                if not empty and any(_is_text(side, names) for side in sides):
                    found.append(node.lineno)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                reads = node.func.attr in READS and _is_text(node.func.value, names)
                matches = node.func.attr in PATTERNS
                if reads or (matches and any(_is_text(one, names) for one in node.args)):
                    found.append(node.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return why_text(x).split('; ')",
        "def f(x):\n    words = why_text(x)\n    return words.startswith('task ')",
        "def f(x): return 'quiet' in stall_words(x)",
        "def f(x): return LATE.fullmatch(why_text(x))",
        "def f(x): return x.explanation == 'unknown'",
    ],
)
def test_reading_is_found(source: str) -> None:
    assert readers(source)


def test_no_code_reads_rendered_text() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in readers(path.read_text("utf-8"))
    ]
    assert found == []


def test_a_program_gets_the_code_the_values_and_the_sentence() -> None:
    """Also deep inside, and where a reason has reasons."""
    event = e.LaunchPostponed(why=Why("waited", seconds=3.0).plus(said("Too many open files")))
    data = with_text({"events": [event]})
    assert data["events"][0]["why"] == {
        "code": "waited",
        "seconds": 3.0,
        "because": ({"code": "said", "problem": "Too many open files"},),
        "text": "waited 3 s more; Too many open files",
    }
