"""A training started by a shell script: watched, ended as a whole, resumed through `"$@"`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_evidence_came_first,
    assert_log_is_sound,
    assert_tree_is_gone,
)
from tests.support import program_command, run_wtrain, write_fast_config

pytestmark = [pytest.mark.processes, pytest.mark.scenario, pytest.mark.torch]

TRAIN = shlex.join(program_command("loader_sleep.py"))
SCRIPTS = {
    "a pipe and a last word": f'set -o pipefail\n{TRAIN} "$@" | tee -a log.txt && echo done\n',
    "exec": f'export OMP_NUM_THREADS=1\nexec {TRAIN} "$@"\n',
    "env and nice": f'nice -n 1 env EXTRA=1 {TRAIN} "$@"\n',
}


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("script", [next(iter(SCRIPTS))])
def test_a_hang_inside_a_shell_script(tmp_path: Path, script: str) -> None:
    """The rank below the shell is dumped, the whole tree is ended, the path arrives at the rank."""
    config = write_fast_config(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPTS[script])
    options = ("--config", str(config), "--resume-arg", "--resume {checkpoint}")
    run = run_wtrain("run", *options, "--", "bash", "run.sh", cwd=tmp_path, timeout_s=140)
    run.check(0)
    assert_log_is_sound(run)
    assert_evidence_came_first(run)
    assert_tree_is_gone(run)
    roles = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert roles.count("rank") == 1, roles
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert "finished step=40" in run.stdout, run.describe()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("script", list(SCRIPTS)[1:])
def test_a_hang_inside_other_shell_scripts(tmp_path: Path, script: str) -> None:
    """The same behind exec, and behind programs that exec."""
    test_a_hang_inside_a_shell_script(tmp_path, script)
