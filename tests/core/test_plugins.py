"""Families and checkpoint formats of other packages: found, and no harm when they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click.testing
import msgspec
import pytest

from tests.checkpoint_samples import look, torch_zip, write_files, write_hf
from tests.core.test_diagnose import evidence_of
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.cli.checkpoints import checkpoints
from watchdog_train.core.model import Survey
from watchdog_train.evidence.installed_families import all_families
from watchdog_train.explain.cause import REGISTERED
from watchdog_train.explain.families import known_families
from watchdog_train.explain.judge import judge

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
LICENCE = ["sleep (time.py:1)", "checkout (simulator/licence.py:9)", "start (simulator/run.py:3)"]


def waiting(*main: str):
    """A rank that waits there."""
    rank = {"pid": 10, "ppid": 1, "role": "rank", "rank": 0, "cpu_share": 0.0, "main": main}
    return evidence_of({"why": "stall", "processes": [rank]})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution into a folder that is on the path."""
    site, known, loaded = tmp_path / "site", dict(REGISTERED), set(sys.modules)

    def installed(name: str, groups: dict[str, str], *modules: Path) -> Path:
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = (f"[watchdog_train.{group}]\none = {value}\n" for group, value in groups.items())
        (info / "entry_points.txt").write_text("".join(lines))
        for module in modules:
            (site / module.name).write_text(module.read_text())
        monkeypatch.syspath_prepend(str(site))
        return site

    yield installed
    REGISTERED.clear()
    REGISTERED.update(known)
    for name in set(sys.modules) - loaded:
        if name.startswith(("simulator", "other_")):
            del sys.modules[name]


@pytest.fixture
def example(install):
    """The example package, with the entry points of its pyproject.toml."""
    groups = {"families": "simulator_families", "checkpoints": "simulator_checkpoints:FORMAT"}
    project = (EXAMPLE / "pyproject.toml").read_text()
    for group, value in groups.items():
        points = f'[project.entry-points."watchdog_train.{group}"]\nsimulator = "{value}"\n'
        assert points in project
    return lambda: install("simulator", groups, *EXAMPLE.glob("*.py"))


def test_the_example_package_names_its_cause(example):
    """What ours do not know, the package of the user does; a case and a near miss."""
    evidence = waiting(*LICENCE)
    assert judge(evidence).family is None
    example()
    families, warnings = all_families()
    found = judge(evidence, families=families)
    assert (found.family, warnings) == ("simulator-licence", [])
    assert judge(waiting(LICENCE[0], "main (train.py:9)"), families=families).family is None


def simulated(out: Path, step: int, *, done: bytes | None = b"5") -> Path:
    """A checkpoint of the simulator, with a part that is a file of torch.save."""
    files = {"field.bin": b"field", "net.pt": torch_zip()}
    last = {} if done is None else {"DONE": done}
    return write_files(out / f"sim-{step}", {**files, **last}, at_s=1e6 + step)


def told(out: Path) -> tuple[click.testing.Result, dict[str, object]]:
    """What `wtrain checkpoints` says in words, and as JSON."""
    runner = click.testing.CliRunner()
    answer = runner.invoke(checkpoints, [str(out), "--json"])
    return runner.invoke(checkpoints, [str(out)]), json.loads(answer.stdout)


def test_a_checkpoint_of_the_example_package_is_found_checked_and_used(example, tmp_path):
    """By `wtrain checkpoints`, and by the process that scans between two attempts."""
    out, answer = tmp_path / "out", tmp_path / "survey.json"
    valid = simulated(out, 20)
    simulated(out, 30, done=None)
    simulated(out, 40, done=b"6")
    assert {one.format for one in look(out)} == {"torch"}
    site = example()
    words, found = told(out)
    assert found["newest_whole"] == str(valid)
    rows = [(row["format"], row["step"], row["whole"]) for row in found["checkpoints"]]
    assert rows[:3] == [("simulator", step, step == 20) for step in (40, 30, 20)]
    assert [row[0] for row in rows[3:]] == ["torch"] * 3, "parts: better than nothing"
    assert "DONE is missing, which is written last" in words.stdout
    assert "field.bin has 5 bytes, DONE says 6" in words.stdout
    assert words.stdout.endswith("to resume: simulate --from {checkpoint}\n")
    assert words.stderr == ""
    request = SurveyRequest(directories=(str(out),), out=str(answer), settle_s=0.0)
    (tmp_path / "request.json").write_bytes(msgspec.json.encode(request))
    command = (sys.executable, "-m", "watchdog_train.checkpoints.survey")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([*command, str(tmp_path / "request.json")], check=True, env=environment)
    scanned = msgspec.json.decode(answer.read_bytes(), type=Survey)
    assert (scanned.newest_whole.path, scanned.warnings) == (str(valid), ())


FAMILY = """
from watchdog_train.explain.cause import family
@family("broken", kind="hang")
def broken(scene, process):
    "It fails."
    return 1 / 0
"""
FORMAT = """
import time
from watchdog_train.checkpoints.disk import Listing
from watchdog_train.checkpoints.formats import Format, Verdict, a_directory
ETC = Listing(path="/etc", entries=(), cut=False)
def find(listing):
    return a_directory(listing, "odd", {{"a": (1, 1)}}, 900)
def check(candidate, limits):
    return Verdict(whole=True, why="it looks good")
{}
FORMAT = Format(name="odd", resume_hint="", find=find, check=check)
"""
LATE = "import time; time.sleep(30)"
IMPORTS = {
    "raises": ("raise ValueError('no')", "ValueError: no"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "is slow": (LATE, "not loaded within 1 s"),
}
FAMILIES = {**IMPORTS, "fails later": (FAMILY, "broken: ZeroDivisionError: division by zero")}


def odd(line: str) -> str:
    return FORMAT.format(line)


HF = "def Format(**_): from watchdog_train.checkpoints import hf; return hf.FORMAT"
ELSEWHERE = "def find(_): return a_directory(ETC, 'odd', {'a': (1, 1)})"
NONSENSE = "def find(listing): return a_directory(listing, 'odd', {'a': (1, 1)}, 'x')"
FORMATS = {
    **IMPORTS,
    "is none": ("FORMAT = 3", "the entry point names a int, not a Format"),
    "has a name of ours": (odd(HF), "there is a format hf already"),
    "cannot find": (odd("def find(_): 1 / 0"), "odd: ZeroDivisionError: division by zero"),
    "finds slowly": (odd("def find(_): time.sleep(30)"), "odd: not done within 1 s"),
    "finds elsewhere": (odd(ELSEWHERE), "odd: ValueError: /etc is not in"),
    "finds nonsense": (odd(NONSENSE), "odd: ValidationError: Expected `int | null`, got `str`"),
    "cannot check": (odd("def check(*_): raise KeyError('a')"), "odd: KeyError: 'a'"),
    "checks slowly": (odd("def check(*_): time.sleep(30)"), "odd: not done within 1 s"),
    "checks nonsense":
        (odd("def check(*_): return True"), "odd: ValidationError: Expected `object`, got `bool`"),
}  # fmt: skip


@pytest.fixture
def broken(install, tmp_path):
    """Installs a package with this code."""

    def installed(group: str, how: str, code: str) -> None:
        # A slow import holds the lock of its module.
        module = tmp_path / f"other_{group}_{how.replace(' ', '_')}.py"
        module.write_text(code)
        value = module.stem + (":FORMAT" if group == "checkpoints" else "")
        install("other", {group: value}, module)

    return installed


@pytest.mark.parametrize("how", FAMILIES)
def test_a_family_that_fails_is_one_warning(broken, how):
    code, warning = FAMILIES[how]
    broken("families", how, code)
    families, warnings = all_families()
    assert judge(waiting(*LICENCE), families=families).family is None
    assert warnings == [f"families of other: {warning}"]


def test_packages_that_cannot_be_listed_are_one_warning(monkeypatch):
    """A collector that has given up its rights may not read them; our own families remain."""

    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("importlib.metadata.entry_points", refused)
    families, warnings = all_families()
    assert families == known_families()
    assert warnings == [
        "families of the installed packages: PermissionError: [Errno 13] Permission denied"
    ]


@pytest.mark.parametrize("how", FORMATS)
def test_a_format_that_fails_is_one_warning(broken, tmp_path, how):
    """The checkpoints of our formats are then found, checked and used without it, as before."""
    ours = [str(write_hf(tmp_path / "out", step)) for step in (20, 10)]
    write_files(tmp_path / "out" / "other", {"a": b"a"})
    code, warning = FORMATS[how]
    broken("checkpoints", how, code)
    words, found = told(tmp_path / "out")
    assert found["newest_whole"] == ours[0]
    assert [row["path"] for row in found["checkpoints"] if row["whole"]] == ours
    (line,) = words.stderr.splitlines()
    assert line.startswith(f"wtrain: checkpoint formats of other: {warning}")


def test_frameworks_of_ours_go_before_formats_of_other_packages(broken, tmp_path):
    broken("checkpoints", "claims everything", FORMAT.format(""))
    ours = write_hf(tmp_path / "out", 20)
    write_files(tmp_path / "out", {"last.pt": torch_zip()})
    write_files(tmp_path / "out" / "other", {"a": b"a"}, at_s=2e6)
    request = SurveyRequest(directories=(str(tmp_path / "out"),), settle_s=0.0)
    survey(msgspec.structs.replace(request, level="noted"))
    assert "other_checkpoints_claims_everything" not in sys.modules
    found = [(Path(one.path).name, one.format) for one in survey(request).findings]
    assert found == [(ours.name, "hf"), ("out", "odd"), ("other", "odd"), ("last.pt", "torch")]
