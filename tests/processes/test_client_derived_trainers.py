"""Trainers that derive from the one of transformers: seen, saved and asked like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.support import PROGRAMS
from watchdog_train.client import layout

pytestmark = pytest.mark.slow

for name in ("transformers", "datasets"):
    pytest.importorskip(name)

PACKAGE = {"seq2seq": "transformers", "sft": "trl", "dpo": "trl"}
PACKAGE["sentence"] = "sentence_transformers"

SEEN = """
import json, sys
sys.path.insert(0, sys.argv[2])
import derived_trainers
from watchdog_train.client import milestones, slot, layout as L
kind, seen, generating = sys.argv[1], {"step": [], "evaluation": []}, []

class Look(derived_trainers.TrainerCallback):
    def on_step_begin(self, *args, **kwargs): seen["step"].append(slot.words[L.W_PHASE])
    def on_prediction_step(self, *args, **kwargs): seen["evaluation"].append(slot.words[L.W_PHASE])

trainer = derived_trainers.make(kind, "out", 10, [Look()])
if kind == "seq2seq":
    generate = trainer.model.generate
    def noted(*args, **kwargs):
        generating.append(slot.words[L.W_PHASE])
        return generate(*args, **kwargs)
    trainer.model.generate = noted
trainer.train()
places = [place["name"] for place in milestones.listed()]
print(json.dumps([list(slot.words[:40]), seen, generating, places]))
"""


@pytest.mark.timeout(420)
@pytest.mark.parametrize("kind", PACKAGE)
def test_progress_phases_and_saves_are_seen(kind: str, training: Training) -> None:
    """Steps, total, loss; evaluation, with what it generates, as its own phase; each save once."""
    pytest.importorskip(PACKAGE[kind])
    home = {"HF_HOME": str(training.root / "hf"), "HF_HUB_OFFLINE": "1"}
    words, seen, generating, places = training.json(SEEN, kind, str(PROGRAMS), env=home)
    assert (words[layout.W_FRAMEWORK_STEP], words[layout.W_TOTAL_STEPS]) == (11, 10)
    assert words[layout.W_OPTIMIZER_STEPS] == 10
    assert words[layout.W_TRAIN_ORDINAL] == 1
    assert words[layout.W_LOSS] > 0
    assert words[layout.W_HOOKS_FAILED] == 0, training.note()
    assert words[layout.W_PHASE] == layout.PHASE_FINISHING
    assert seen["step"][0] == layout.PHASE_FIRST_STEP
    assert set(seen["step"][1:]) == {layout.PHASE_TRAIN}
    assert len(seen["evaluation"]) == 2
    assert set(seen["evaluation"]) == {layout.PHASE_EVAL}
    assert set(generating) == ({layout.PHASE_EVAL} if kind == "seq2seq" else set())
    for place in ("build Trainer", "prepare training", "training finished"):
        assert place in places, places
    saves = [save for save in training.saves() if save.path.startswith(str(training.root / "out"))]
    told = [(save.format, save.step, Path(save.path).name) for save in saves]
    assert told == [("hf", step, f"checkpoint-{step}") for step in (5, 10)]
    assert training.note()["notes"] == []
