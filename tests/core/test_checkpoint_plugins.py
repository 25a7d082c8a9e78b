"""A format of another package is used; one that fails is said and costs nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.checkpoint_samples import look, torch_zip, write_files
from watchdog_train.checkpoints import plugins, registry
from watchdog_train.checkpoints.survey import SurveyRequest, survey

GOOD = """
from watchdog_train.checkpoints.files import read_capped
from watchdog_train.checkpoints.formats import Candidate, Verdict

class Toy:
    name = "toy"
    owns_directory = False
    resume_hint = "--from {checkpoint}"
    def find(self, listing):
        return tuple(
            Candidate(path=f"{listing.path}/{one.name}", format="toy", step=int(one.name[3:-4]),
                      order=int(one.name[3:-4]), files={one.name: (one.size, one.mtime_ns)})
            for one in listing.entries if one.name.endswith(".toy"))
    def newest_first(self, candidates):
        return tuple(sorted(candidates, key=lambda one: -one.order))
    def check(self, candidate, limits):
        whole = read_capped(candidate.path, 100).endswith(b"end")
        return Verdict(whole=whole, why="by its last word", how_checked="quick")
"""
FAILS = GOOD.replace('"toy"', '"other"').replace("tuple(\n", "1 / 0 or tuple(\n")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a package with entry points where Python finds it."""
    site = tmp_path / "site"

    def forget() -> None:
        registry.formats.cache_clear()
        registry.by_name.cache_clear()
        registry.plugin_problems.clear()
        for name in [name for name in sys.modules if name.startswith("wtrain_toy")]:
            del sys.modules[name]

    def put(name: str, code: str) -> None:
        information = site / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (information / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}:Toy\n")
        (site / f"{name}.py").write_text(code)
        forget()

    monkeypatch.syspath_prepend(str(site))
    yield put
    forget()


def directory(tmp_path: Path) -> Path:
    files = {"at_7.toy": b"x end", "at_9.toy": b"x", "step-3.pt": torch_zip()}
    return write_files(tmp_path / "out", files)


def test_a_format_of_another_package_is_found_and_checked(tmp_path, install):
    """Its checkpoints, in its own order, beside those that are known anyway."""
    install("wtrain_toy_one", GOOD)
    found = look(directory(tmp_path))
    told = [(item.format, item.step, item.whole) for item in found]
    assert told == [("toy", 9, False), ("toy", 7, True), ("torch", 3, True)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (FAILS, "has failed in find(): ZeroDivisionError"),
        ("raise RuntimeError('no such library')", "cannot be loaded: RuntimeError"),
        (GOOD.replace('"toy"', '"hf"'), "there is a format hf already"),
    ],
)
def test_a_plugin_that_fails_is_said_and_costs_nothing_else(tmp_path, install, code, words):
    """The others are looked at as ever, and the answer says who has failed."""
    install("wtrain_toy_two", code)
    answer = survey(SurveyRequest(directories=(str(directory(tmp_path)),), check="all", settle_s=0))
    assert [item.format for item in answer.findings] == ["torch"]
    assert words in answer.problem
    assert "wtrain_toy_two" in answer.problem


def test_plugins_can_be_left_out(tmp_path, install, monkeypatch):
    """One variable for all of them."""
    monkeypatch.setenv(plugins.OFF, "1")
    install("wtrain_toy_three", GOOD)
    assert [item.format for item in look(directory(tmp_path))] == ["torch"]
