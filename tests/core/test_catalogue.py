"""The catalogue: ids agree with the families, and every remedy tells what it costs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.checkpoint_samples import write_hf
from watchdog_train.cli.checkpoints import checkpoints
from watchdog_train.cli.remedies import remedies
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery.ladder import FALLBACK
from watchdog_train.errors import WtrainError
from watchdog_train.explain.families import known_families
from watchdog_train.explain.messages import MESSAGES
from watchdog_train.remedies import catalogue
from watchdog_train.remedies.user_fixes import ALWAYS, USER_FIXES

PACKAGE = Path(__file__).parents[2] / "watchdog_train"


def test_every_remedy_that_a_family_names_is_known():
    """A family names what can be applied, or what is explained to the user.

    Those of single sentences are checked by the cases of `test_diagnose.py`.
    """
    names = {name for family in known_families() for name in family.remedies}
    names |= {name for row in MESSAGES for name in row.remedies or ()}
    assert names
    assert names <= set(catalogue.CATALOGUE) | set(USER_FIXES) | set(ALWAYS)


def test_nothing_is_both_applied_and_left_to_the_user():
    assert not set(catalogue.CATALOGUE) & set(USER_FIXES)
    assert not (set(catalogue.CATALOGUE) | set(USER_FIXES)) & set(ALWAYS)


def test_fallback_settings_are_execution_remedies_that_may_be_applied_by_themselves():
    """An unknown cause never changes what the user has not allowed."""
    for name in FALLBACK:
        assert catalogue.CATALOGUE[name].kind == "execution"
        assert not catalogue.CATALOGUE[name].needs_allow


@pytest.mark.parametrize("remedy", catalogue.CATALOGUE.values(), ids=catalogue.CATALOGUE)
def test_a_remedy_says_everything(remedy):
    for text in (remedy.summary, remedy.changes, remedy.may_break):
        assert text
    assert bool(remedy.script_line) is not remedy.changes_nothing
    assert remedy.changes_nothing is (remedy.id == "plain-retry")
    assert not remedy.precondition.startswith("none")
    if remedy.in_process is not None:
        assert remedy.in_process["id"] == remedy.id
    assert remedy.platforms


def test_a_remedy_has_lines_for_the_script():
    lines = catalogue.script_lines()
    assert lines["num-workers-0"].splitlines() == [
        "DataLoader(..., num_workers=0)",
        "TrainingArguments(..., dataloader_num_workers=0)  # with a Trainer",
    ]
    assert "plain-retry" not in lines
    assert catalogue.remedy_words()["plain-retry"] == "starts again with nothing changed"


def test_a_platform_gets_what_works_there():
    assert "cpu-not-mps" in catalogue.available("linux")
    assert "nccl-p2p-off" in catalogue.available("linux")
    assert "nccl-p2p-off" not in catalogue.available("win32")


def test_wrong_names_are_refused_all_at_once():
    """Unknown, meant otherwise, the user's own, of another platform, contradicting: one error."""
    policy = Policy(
        recovery=Recovery(
            with_remedies=("num-worker-0", "main-guard", "nccl-ib-off", "spawn"),
            without_remedies=("spawn", "omp1"),
            allow=("trainng", "device", "wandb-offline"),
        )
    )
    with pytest.raises(WtrainError) as caught:
        catalogue.refuse_unknown(policy, "darwin")
    text = caught.value.message
    assert "did you mean num-workers-0?" in text
    assert "__main__" in text
    assert "nccl-ib-off: does nothing on darwin" in text
    assert "spawn: is forbidden" in text
    assert "did you mean omp-1?" in text
    assert "did you mean training?" in text
    assert "device" not in text
    assert len(text.splitlines()) == 6
    catalogue.refuse_unknown(Policy())


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("skip-bad-batches=20", None),
        ("skip-bad-batches=0", "--with skip-bad-batches=0: takes a whole number from 1, such as"),
        ("skip-bad-batches=", "takes a whole number from 1, such as skip-bad-batches=100"),
        ("skip-bad-batches=2.5", "takes a whole number from 1"),
        ("spawn=3", "--with spawn: takes no number"),
        ("skip-bad-batch=3", "did you mean skip-bad-batches?"),
    ],
)
def test_a_number_is_checked(word, problem):
    policy = Policy(recovery=Recovery(with_remedies=(word,)))
    if problem is None:
        return catalogue.refuse_unknown(policy)
    with pytest.raises(WtrainError) as caught:
        catalogue.refuse_unknown(policy)
    assert len(caught.value.message.splitlines()) == 1
    assert problem in caught.value.message
    text = CliRunner().invoke(remedies, []).stdout
    assert "number: --with skip-bad-batches=N; 100 unless given" in text
    return None


def test_remedies_command_lists_all():
    text = CliRunner().invoke(remedies, [])
    assert text.exit_code == 0
    answer = json.loads(CliRunner().invoke(remedies, ["--json"]).stdout)
    assert [item["id"] for item in answer["remedies"]] == list(catalogue.CATALOGUE)
    assert [item["id"] for item in answer["user_fixes"]] == list(USER_FIXES)
    assert [item["id"] for item in answer["always"]] == list(ALWAYS)
    for name in (*catalogue.CATALOGUE, *USER_FIXES, *ALWAYS):
        assert name in text.stdout
    assert "when: none" not in text.stdout


def test_checkpoints_command(tmp_path):
    write_hf(tmp_path, 10)
    write_hf(tmp_path, 20, optimizer__pt=None)
    answer = json.loads(CliRunner().invoke(checkpoints, [str(tmp_path), "--json"]).stdout)
    assert answer["schema_version"] == 1
    assert answer["newest_whole"] == str(tmp_path / "checkpoint-10")
    assert [(item["step"], item["whole"]) for item in answer["checkpoints"]] == [
        (20, False),
        (10, True),
    ]
    assert set(answer["checkpoints"][0]) == {"path", "format", "step", "whole", "why"}
    text = CliRunner().invoke(checkpoints, [str(tmp_path), "--level", "full"]).stdout
    assert "invalid" in text
    assert f"newest valid: {tmp_path / 'checkpoint-10'}" in text


def test_checkpoints_command_without_a_directory(tmp_path):
    answer = CliRunner().invoke(checkpoints, [str(tmp_path / "nothing")])
    assert isinstance(answer.exception, WtrainError)
    assert CliRunner().invoke(checkpoints, [str(tmp_path)]).exit_code == 0


def test_file_names_cannot_write_to_the_terminal(tmp_path):
    (tmp_path / "evil\x1b[2J.pt").write_bytes(b"")
    assert "\x1b" not in CliRunner().invoke(checkpoints, [str(tmp_path)]).stdout


def test_no_checkpoint_module_can_unpickle():
    for path in (PACKAGE / "checkpoints").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "torch", "marshal", "shelve"} & {n.split(".")[0] for n in names}
