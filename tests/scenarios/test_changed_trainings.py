"""Remedies that make less of what is trained on or evaluated: no-eval, eval-batch,
shorter-sequences, subset; in each framework on a training that fails without them.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import INJECT, Training
from tests.support import PROGRAMS, program_command, run_fast, run_wtrain, sentence
from watchdog_train.client import training_settings

torch = pytest.importorskip("torch")


SETTINGS: dict[str, dict[str, Any]] = {
    "no-eval": {},
    "eval-batch": {},
    "shorter-sequences": {"times": 1},
    "subset": {"n": 16},
}
TOOK = {
    "eval-batch": "evaluation 8 -> 4",
    "shorter-sequences": "sequences of 64 -> 32",
    "subset": "40 -> 16 examples",
}
NO_LOOP = "only the Trainers of transformers and Lightning can be told not to evaluate"
FRAMEWORKS: dict[str, tuple[str, dict[str, str | None]]] = {
    # framework: what it needs, and what is said, None where it has no effect
    "plain": ("torch", {**TOOK, "no-eval": None}),
    "accelerate": ("accelerate", {**TOOK, "no-eval": None}),
    "trainer": (
        "transformers",
        {**TOOK, "no-eval": "eval_strategy steps -> no; no best model, no early stopping"},
    ),
    "lightning": (
        "lightning",
        {
            **TOOK,
            "no-eval": "no validation; checkpoints are the newest, no early stopping by a "
            "validation",
            "eval-batch": None,
        },
    ),
}


def became(
    where: Path, settings: dict[str, dict[str, Any]], *arguments: str
) -> tuple[dict[str, Any], dict[str, tuple[bool, str]]]:
    """What the trainings of the program came to, and what was said about the settings."""
    where.mkdir()
    training = Training(where, settings=[{"id": name, **more} for name, more in settings.items()])
    program = (PROGRAMS / "changed_trainings.py").read_text()
    path = {"PYTHONPATH": f"{INJECT}{os.pathsep}{PROGRAMS}"}
    facts = training.json(program, *arguments, env=path)
    said: dict[str, tuple[bool, str]] = {}
    for note in training.all_notes():
        for name, answer in note["settings"].items():
            if name not in said or answer["took"]:
                said[name] = (answer["took"], answer["why"])
    return facts, said


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_that_needs_it(framework: str, tmp_path: Path) -> None:
    """Each training fails without its setting; with it it ends, where the framework has it."""
    library, expected = FRAMEWORKS[framework]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    troubles = {
        "evaluation": "no-eval", "long": "shorter-sequences", "stream": "subset",
        "many": "subset", "eval-batch": "eval-batch",
    }  # fmt: skip
    if framework == "lightning":
        del troubles["eval-batch"]
    without, said = became(tmp_path / "without", {}, framework, *troubles)
    assert "ended" not in without["became"].values(), without
    assert not said
    facts, said = became(tmp_path / "with", SETTINGS, framework, *troubles)
    for trouble, setting in troubles.items():
        took = expected[setting] is not None
        assert (facts["became"][trouble] == "ended") is took, (trouble, facts)
    for setting, why in expected.items():
        took, told = said[setting]
        assert took is (why is not None), (setting, said)
        if took:
            assert told in (why, "the first 16 examples"), (setting, told)
    assert facts["lengths"] == [32]
    if framework == "lightning":
        assert (facts["validates"], facts["checkpoints"], facts["evaluated"]) == (1.0, 1, 0)
    elif framework == "trainer":
        assert facts["evaluated"] == 16  # by the script, after a training


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("framework", ["plain", "trainer"])
def test_no_effect_is_said_where_there_is_none(framework: str, tmp_path: Path) -> None:
    """Short sequences, few examples, no evaluation in between, a batch that is small."""
    if find_spec(FRAMEWORKS[framework][0]) is None:
        pytest.skip("not installed")
    facts, said = became(tmp_path / "run", SETTINGS, framework, "nothing")
    assert facts["became"] == {"nothing": "ended"}
    assert facts["lengths"] == [8]
    in_loop = framework == "plain"
    assert said == {
        "no-eval": (False, NO_LOOP if in_loop else "it does not evaluate in between"),
        "eval-batch": (
            False,
            "no evaluation with a larger batch has begun so far"
            if in_loop
            else "the evaluation's batch of 4 is no larger than the training's",
        ),
        "shorter-sequences": (False, "sequences of 8 stay"),
        "subset": (False, "the dataset has 16 examples"),
    }


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_sequences_are_halved_again_by_the_next_attempt(tmp_path: Path) -> None:
    """Sequences of 32 hang as those of 64 do; those of 16 end, and the report has the line."""
    asked = ("--with", "shorter-sequences", "--with", "no-eval")
    command = program_command("changed_trainings.py", "plain", "hang")
    run = run_fast(tmp_path, command, *asked, timeout_s=160).check(0)
    plans = [event["plan"]["in_process"] for event in run.of_type("attempt_launching")]
    times = [entry["times"] for plan in plans for entry in plan if "times" in entry]
    assert times == [1, 2], run.describe()
    facts = json.loads(run.stdout.splitlines()[-1])
    assert facts["lengths"] == [16], facts
    told = [event for event in run.of_type("remedy_taken") if event["remedy"][:7] == "shorter"]
    assert [sentence(event["why"]) for event in told] == [
        "sequences of 64 -> 32", "sequences of 64 -> 16",
    ]  # fmt: skip
    report = run_wtrain("report", cwd=tmp_path)
    assert "tokenizer(..., truncation=True, max_length=...)" in report.stdout
    assert f"NOT in effect: {NO_LOOP}" in " ".join(report.stdout.split()), report.stdout


# -- Which part of a batch is left -----------------------------------------------------------------


def tokens(rows: int, length: int) -> Any:
    return torch.arange(rows * length).view(rows, length)


def cut(**batch: Any) -> dict[str, Any]:
    """A batch of sequences of 32, halved."""
    training_settings._seen["length"] = 0
    ids = tokens(2, 32)
    found: dict[str, Any] = training_settings._shorter({"input_ids": ids, **batch}, 1)
    assert (ids == tokens(2, 32)).all()
    return found


def first_column(batch: dict[str, Any]) -> tuple[int, int]:
    """The length, and where it begins."""
    assert batch["input_ids"].is_contiguous()
    return batch["input_ids"].shape[1], int(batch["input_ids"][0, 0])


def padded_left(padding: int) -> Any:
    mask = torch.ones(2, 32, dtype=torch.long)
    mask[0, :padding] = 0
    return mask


def with_labels(begin: int, end: int) -> Any:
    labels = torch.full((2, 32), -100)
    labels[:, begin:end] = 1
    return labels


@pytest.mark.parametrize(
    ("batch", "left"),
    [
        ({}, (16, 0)),
        ({"attention_mask": padded_left(3)}, (16, 0)),
        ({"attention_mask": padded_left(20)}, (16, 16)),
        ({"labels": with_labels(0, 32)}, (16, 0)),
        ({"labels": with_labels(24, 32)}, (16, 16)),
        ({"labels": torch.zeros(2, 7)}, (16, 0)),
        ({"attention_mask": padded_left(20), "labels": with_labels(0, 8)}, (32, 0)),
        ({"mask_of_all": torch.ones(2, 1, 32, 32)}, (32, 0)),
        ({"cu_seq_lens_q": torch.tensor([0, 10, 32])}, (32, 0)),
    ],
)
def test_a_cut_leaves_something_to_learn_from(batch: dict[str, Any], left: tuple[int, int]) -> None:
    """The beginning, or the end where only that has tokens and labels, or all of it."""
    found = cut(**batch)
    assert first_column(found) == left
    for name, value in batch.items():
        assert found[name].shape[-1] == (left[0] if value.shape == (2, 32) else value.shape[-1])


def test_the_greatest_length_so_far_is_halved() -> None:
    """A short batch before a long one is cut by its own length, after it it stays."""
    training_settings._seen["length"] = 0
    lengths = [
        training_settings._shorter({"input_ids": tokens(1, length)}, 1)["input_ids"].shape[1]
        for length in (40, 8, 100, 48, 20)
    ]
    assert lengths == [16, 8, 48, 48, 20]
