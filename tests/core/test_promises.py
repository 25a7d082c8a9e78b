"""docs/promises.md: each promise names a test that exists and runs wtrain or a training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.chaos.faults import FAULTS
from tests.support import REPOSITORY, TESTS

PAGE = (REPOSITORY / "docs" / "promises.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!promise |---)([^|]+) \|([^|]*)\|$", PAGE, re.MULTILINE)
RUNS = (
    r"tests\.support (run_(program|command)|(run|start)_(wtrain|fast))|subprocess|"
    r"tests\.(client_runs|nodes|terminal|chaos|slurm)"
)


def parts(path: str) -> Iterator[tuple[str, str]]:
    """What a test module binds at its top: name and text."""
    for node in ast.parse((TESTS / path).read_text("utf-8")).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            place = getattr(node, "module", "")
            yield from ((one.name, f"{place} {one.name}") for one in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, ast.unparse(node)
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), ast.unparse(node)


def test_every_promise_is_short_and_said_once() -> None:
    """A promise that needs two sentences is two promises."""
    promises = [promise for promise, _ in ROWS]
    assert len(promises) == len(set(promises)) >= 70
    assert [promise for promise in promises if len(promise.split()) > 20] == []


@pytest.mark.parametrize(("promise", "shown_by"), ROWS, ids=[row[0] for row in ROWS])
def test_a_promise_has_a_test_that_shows_it(promise: str, shown_by: str) -> None:
    """From outside, so that it holds whatever becomes of the code."""
    named = re.findall(r"`([^`*]+)(\*?)`", shown_by)
    assert named, f"no test shows: {promise}"
    for reference, night in named:
        if reference.startswith("campaign: "):
            assert reference.removeprefix("campaign: ") in FAULTS
            continue
        assert re.match(r"(scenarios|processes|slow)/\w+\.py::test_\w+$", reference), reference
        path, _, name = reference.partition("::")
        known, reached, left = dict(parts(path)), "", [name]
        assert name in known, f"{reference} does not exist"
        marks = [line for line in known[name].splitlines() if line.startswith("@")]
        marks = [line for line in marks if "parametrize(" not in line]
        marks.append(known.pop("pytestmark", ""))
        assert not re.search(r"mark\.skip\b", " ".join(marks)), f"{reference} is never run"
        if re.search(r"mark\.slow\b|@SLOW", " ".join(marks)):
            assert night, f"{reference} runs at night only: end it with *"
        while left:
            text = known.pop(left.pop(), "")
            reached += text
            left += re.findall(r"\w+", text)
        assert re.search(RUNS, reached), f"{reference} runs neither wtrain nor a training"
