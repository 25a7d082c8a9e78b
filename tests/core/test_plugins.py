"""Families of other packages: found by their entry point, and no harm when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.core.test_diagnose import evidence_of
from watchdog_train.evidence.plugins import GROUP, all_families
from watchdog_train.explain.cause import REGISTERED
from watchdog_train.explain.judge import judge

EXAMPLE = Path(__file__).parents[2] / "examples" / "families"
LICENCE = ["sleep (time.py:1)", "checkout (simulator/licence.py:9)", "start (simulator/run.py:3)"]


def waiting(*main: str):
    """A rank that waits there."""
    rank = {"pid": 10, "ppid": 1, "role": "rank", "rank": 0, "cpu_share": 0.0, "main": main}
    return evidence_of({"why": "stall", "processes": [rank]})


FAILS = """
from watchdog_train.explain.cause import family
@family("broken", kind="hang")
def broken(scene, process):
    "It fails."
    return 1 / 0
"""
BROKEN = {
    "raises": ("raise ValueError('no')", "families of other: ValueError: no"),
    "exits": ("raise SystemExit(3)", "families of other: SystemExit: 3"),
    "is slow": ("import time; time.sleep(30)", "families of other: not loaded within 1 s"),
    "fails later": (FAILS, "families of other: broken: ZeroDivisionError: division by zero"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with one module on the path."""

    def installed(name: str, module: str, folder: Path) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[watchdog_train.families]\none = {module}\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.syspath_prepend(str(tmp_path))

    known = dict(REGISTERED)
    yield installed
    REGISTERED.clear()
    REGISTERED.update(known)
    sys.modules.pop("simulator_families", None)


def test_the_example_package_names_its_cause(install):
    """What ours do not know, the package of the user does; a case and a near miss."""
    evidence = waiting(*LICENCE)
    assert judge(evidence).family is None
    assert f'[project.entry-points."{GROUP}"]' in (EXAMPLE / "pyproject.toml").read_text()
    install("simulator", "simulator_families", EXAMPLE)
    families, warnings = all_families()
    found = judge(evidence, families=families)
    assert (found.family, warnings) == ("simulator-licence", [])
    assert judge(waiting(LICENCE[0], "main (train.py:9)"), families=families).family is None


@pytest.mark.parametrize("how", BROKEN)
def test_a_package_that_fails_is_one_warning(install, tmp_path, how):
    """The cause is then judged without it, as before."""
    code, warning = BROKEN[how]
    module = f"other_{how.replace(' ', '_')}"  # a slow import holds the lock of its module
    (tmp_path / f"{module}.py").write_text(code)
    install("other", module, tmp_path)
    families, warnings = all_families()
    assert judge(waiting(*LICENCE), families=families).family is None
    assert warnings == [warning]
