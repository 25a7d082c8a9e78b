"""The oldest libraries that hooks are armed for, and the other Pythons that wtrain runs on.

Each in an environment of its own that borrows the rest, torch most of all: the registries have one
CPU build of torch (2.13.0, for Python 3.11), so older torch, and torch on another Python, are not
run here. The newest versions are those of constraints.txt, which every other test runs on.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import REPOSITORY, interpreter, run_command
from watchdog_train.client.libraries import HOOKS

pytestmark = pytest.mark.slow

OLDEST = {library: tested[0] for _, library, _, _, tested in HOOKS.values()}
NEWEST = {library: tested[-1] for _, library, _, _, tested in HOOKS.values()}
BESIDE = {
    # What goes with the oldest of these libraries and is not taken from this environment.
    "transformers": ("tokenizers==0.21.0", "numpy==1.26.4", "requests", "urllib3", "certifi"),
    "huggingface_hub": ("charset-normalizer",),
    # Old Lightning asks for pkg_resources, which setuptools has dropped.
    "lightning": ("setuptools==80.9.0",),
    "pytorch_lightning": ("setuptools==80.9.0",),
    "datasets": (
        *("fsspec==2024.6.1", "dill==0.3.8", "multiprocess==0.70.16"),
        *("pyarrow==17.0.0", "pandas==2.2.3", "pytz"),
    ),
}
HUGGING_FACE = ("transformers", "accelerate", "huggingface_hub", "datasets", "safetensors", "tqdm")
PYTEST = ("-m", "pytest", "-q", "--all", "-p", "no:randomly")
CLIENT = "tests/processes/test_client_"
CASES = {
    "hugging-face": (
        HUGGING_FACE,
        (
            f"{CLIENT}trainer.py",
            f"{CLIENT}places.py",
            "tests/scenarios/test_hf.py",
            "tests/scenarios/test_remedies.py::test_a_tokenizer_is_slow_where_transformers_has_one",
        ),
        "",
    ),
    "lightning": (("lightning",), (f"{CLIENT}lightning.py",), ""),
    "pytorch_lightning": (
        ("pytorch_lightning",),
        (f"{CLIENT}lightning.py", "tests/scenarios/test_lightning.py"),
        "pytorch_lightning",
    ),
}


def run(*words: str | Path, timeout_s: float = 600.0) -> str:
    """What a command that must succeed says."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_command(words, cwd=REPOSITORY, env=environment, timeout_s=timeout_s, code=None)
    if "No matching distribution found" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


def install(python: Path, *words: str) -> None:
    """By the pip of this environment: one more pip in each would take longer than the rest."""
    options = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, *words)


def borrowing(directory: Path, requirements: list[str]) -> Path:
    """The Python of a new environment with these distributions before those of this one."""
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    install(python, "--no-deps", *requirements)
    (own,) = directory.glob("lib/*/site-packages")
    rest = [entry for entry in sys.path if entry.endswith("site-packages")]
    (own / "zz_borrowed.pth").write_text("\n".join([str(REPOSITORY), *rest]) + "\n")
    command = directory / "bin" / "wtrain"
    command.write_text(f"#!{python}\nfrom watchdog_train.cli.main import main\n\nmain()\n")
    command.chmod(0o755)
    return python


@pytest.mark.parametrize("library", sorted(set(NEWEST) - {"python"}))
def test_the_newest_version_is_the_one_that_all_tests_run_on(library: str) -> None:
    """A version that is called tested has been: where it is installed it is this one."""
    pins = (REPOSITORY / "constraints.txt").read_text("utf-8")
    name = re.escape(library).replace("_", "[-_]")
    pinned = re.search(rf"(?mi)^{name}==(\S+)", pins)
    assert pinned is None or pinned[1] == NEWEST[library]
    if pinned is not None and find_spec(library) is not None:
        assert version(library).partition("+")[0] == NEWEST[library]


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("case", CASES)
def test_the_oldest_versions(case: str, tmp_path: Path) -> None:
    """The tests of the hooks, on the oldest versions that these are armed for."""
    libraries, files, expression = CASES[case]
    wanted = [f"{library}=={OLDEST[library]}" for library in libraries]
    if case == "lightning":
        # One name of Lightning is what the other one is made of.
        wanted.append(f"pytorch-lightning=={OLDEST['lightning']}")
    beside = [name for library in libraries for name in BESIDE.get(library, ())]
    python = borrowing(tmp_path / "environment", [*wanted, *beside])
    for library in libraries:
        code = f"import {library}; print({library}.__version__)"
        assert run(python, "-W", "ignore", "-c", code).split()[-1] == OLDEST[library]
    told = run(python, *PYTEST, *files, "-k", expression, timeout_s=2300)
    assert re.search(r"\d+ passed", told), told


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wanted", ["3.10", "3.12", "3.13"])
def test_other_pythons(wanted: str, tmp_path: Path) -> None:
    """What needs no torch: the whole of our own side, and the client in a bare script."""
    directory = tmp_path / "environment"
    run(interpreter(wanted), "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    needed = re.findall(r'^    "([a-zA-Z-]+)>=', text, re.MULTILINE)
    tools = ("pytest", "pytest-timeout", "pytest-randomly", "pytest-xdist", "hypothesis")
    names = [name for name in needed if name not in ("torch", "filelock")]
    install(python, "--constraint", "constraints.txt", *names, *tools)
    install(python, "--no-deps", "--editable", ".")
    told = run(
        python, *PYTEST, "-n", "2", "-m", "not torch and not slow", "-k", "not the_same_with_us",
        "tests/core", "tests/properties", f"{CLIENT}stub.py", "tests/processes/test_keeper.py",
        timeout_s=1700,
    )  # fmt: skip
    assert re.search(r"\d+ passed", told), told
