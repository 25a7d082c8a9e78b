"""What a shell offers while `wtrain ...` is typed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import bin_path, run_command


def offered(cwd: Path, *words: str) -> list[str]:
    """By the function that bash got from us; the last word is being typed."""
    script = """
eval "$(_WTRAIN_COMPLETE=bash_source wtrain)"
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_wtrain_completion wtrain
printf '%s\\n' "${COMPREPLY[@]}"
"""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    path = f"{bin_path('wtrain').parent}{os.pathsep}{os.environ['PATH']}"
    done = run_command(
        [bash, "--norc", "-c", script, "bash", "wtrain", *words],
        env={**os.environ, "PATH": path, "XDG_STATE_HOME": str(cwd / "state")},
        cwd=cwd,
        timeout_s=30,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_runs_and_remedies_are_offered(tmp_path: Path) -> None:
    """Ids of runs are of this directory, the newest first."""
    for run_id in ("sft-20261121-231005-a3f9", "sft-20261122-010203-beef", "eval-20261122-1-x"):
        (tmp_path / "wtrain-runs" / run_id).mkdir(parents=True)
        (tmp_path / "wtrain-runs" / run_id / "events.jsonl").touch()
    assert offered(tmp_path, "sta") == ["status", "stalls"]
    assert offered(tmp_path, "status", "sft") == [
        "sft-20261122-010203-beef",
        "sft-20261121-231005-a3f9",
    ]
    assert offered(tmp_path, "run", "--with", "num-w") == ["num-workers-0", "num-workers-1"]
    assert offered(tmp_path, "run", "--preset", "o") == ["overnight"]
