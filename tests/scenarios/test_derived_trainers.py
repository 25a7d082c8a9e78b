"""Trainers of trl and sentence-transformers, and one that generates: resumed by the hook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_hang_was_handled, last_line
from tests.support import CompletedRun, program_command, run_fast

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

for name in ("transformers", "datasets"):
    pytest.importorskip(name)

BEGAN = re.compile(r"^(\S+): begins at (\d+)$", re.MULTILINE)
ENDED = re.compile(r"^(\S+): ended at (\d+), sum (\S+)$", re.MULTILINE)


def hung_once(mode: str, cwd: Path) -> CompletedRun:
    """A run that hangs at step 13 of its last training, and reaches its end."""
    run = run_fast(
        cwd, program_command("derived_trainers.py", "--mode", mode), timeout_s=400
    ).check(0)
    assert_hang_was_handled(run)
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["resume_via"] == "hook", run.describe()
    assert plan["checkpoint"]["path"] == str(cwd / "out" / "checkpoint-10")
    assert last_line(run.stdout) == f"finished {mode}"
    return run


def began(run: CompletedRun) -> list[tuple[str, int]]:
    """Where each training of both attempts began, in order."""
    return [(kind, int(step)) for kind, step in BEGAN.findall(run.stdout)]


@pytest.mark.parametrize(
    ("mode", "package"),
    [("seq2seq", "transformers"), ("sft", "trl"), ("sentence", "sentence_transformers")],
)
def test_planted_hang(mode: str, package: str, tmp_path: Path) -> None:
    """It goes on from the newest valid checkpoint, by the hook, to its last step."""
    pytest.importorskip(package)
    run = hung_once(mode, tmp_path)
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert began(run) == [(mode, 0), (mode, 10)]
    assert [(kind, step) for kind, step, _ in ENDED.findall(run.stdout)] == [(mode, "15")]


def test_sft_then_dpo(tmp_path: Path) -> None:
    """Stuck in DPO: SFT is trained again from its beginning, and only DPO goes on from step 10."""
    pytest.importorskip("trl")
    run = hung_once("sft-dpo", tmp_path)
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert began(run) == [("sft", 0), ("dpo", 0), ("sft", 0), ("dpo", 10)]
    ended = ENDED.findall(run.stdout)
    assert [kind for kind, _, _ in ended] == ["sft", "sft", "dpo"]
    assert ended[0] == ended[1], "SFT trained again gives what it gave"


def test_sft_then_dpo_into_one_directory(tmp_path: Path) -> None:
    """SFT, trained again, writes over DPO's checkpoints: DPO begins anew and never with SFT's."""
    pytest.importorskip("trl")
    run = hung_once("same-dir", tmp_path)
    assert began(run) == [("sft", 0), ("dpo", 0), ("sft", 0), ("dpo", 0)]
