"""`wtrain restart` of a job that was led: the same line in every task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.test_several_tasks import LED, as_srun
from tests.support import (
    PROGRAMS,
    Event,
    RunningWtrain,
    bin_path,
    free_port,
    of_type,
    outline,
    read_log,
    run_directories,
    start_wtrain,
    write_fast_config,
    wtrain_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def start(cwd: Path, *words: str, tasks: int = 2) -> RunningWtrain:
    """Each task has a directory of its own for its runs, as machines without a shared disk have."""
    script = cwd / "task.sh"
    script.write_text(f'#!/bin/sh\nWTRAIN_RUNS_DIR=runs-$SLURM_PROCID exec {wtrain_of(cwd)} "$@"\n')
    script.chmod(0o700)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return start_wtrain(*words, cwd=cwd, env=env, wtrain=as_srun(tasks, str(script)))


def run(cwd: Path, *program: str) -> RunningWtrain:
    config = write_fast_config(cwd, LED)
    options = ("--config", str(config), "--on-crash", "stop")
    command = [str(bin_path("python")), str(PROGRAMS / "task_ranks.py"), *program]
    return start(cwd, "run", *options, "--resume-arg", "--resume {checkpoint}", "--", *command)


def logs(cwd: Path) -> list[list[Event]]:
    """Of the run, and of its agents in their order."""
    folders = ("runs-0", "runs-1", "runs-1/.agents")
    return [read_log(path) for each in folders for path in run_directories(cwd, each)]


def errors(cwd: Path) -> str:
    said = [path.read_text("utf-8", "replace") for path in sorted(cwd.glob("task-*.err"))]
    return "\n".join([*said, *map(outline, logs(cwd))])


def test_a_job_is_restarted_by_one_line_in_every_task(tmp_path: Path) -> None:
    """Refused alone, and where the job has another size."""
    ended = run(tmp_path, "--fault", "crash", "--rank", "-1").result(280)
    assert ended.returncode == 3, errors(tmp_path)
    refused = start(tmp_path, "restart", "task_ranks", tasks=1).result(60)
    assert refused.returncode == 78, errors(tmp_path)
    assert "srun wtrain restart task_ranks" in errors(tmp_path)
    refused = start(tmp_path, "restart", "task_ranks", tasks=3).result(60)
    assert refused.returncode == 78, errors(tmp_path)
    assert "this run had 2 tasks, and now there are 3 tasks" in errors(tmp_path)
    keyless = ("restart", "--coordination", "tcp://127.0.0.1:21000", "task_ranks")
    assert start(tmp_path, *keyless).result(60).returncode == 78, errors(tmp_path)
    assert "several machines need a key" in errors(tmp_path)

    assert start(tmp_path, "restart", "task_ranks").result(280).returncode == 0, errors(tmp_path)
    text = errors(tmp_path)
    leader, _, agent = logs(tmp_path)
    assert [one["exit_code"] for one in of_type(leader, "run_finished")] == [3, 0], text
    for log, numbers in ((leader, [1, 2]), (agent, [2])):
        plans = [one["plan"] for one in of_type(log, "attempt_launching")]
        assert [one["attempt"] for one in plans] == numbers, text
        assert Path(plans[-1]["checkpoint"]["path"]).name == "step-000020.pt", text
