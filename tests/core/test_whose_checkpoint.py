"""Of several trainings in one run: whose a checkpoint is, and which goes first."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoint_samples import lightning_zip, look, noted, write_files, write_hf
from watchdog_train.core.model import SaveRecord, TrainingReport

START_S = 1_000_000.0


def saved(
    home: Path, step: int, at_s: float, ordinal: int, nth: int, signature: str | None = None
) -> SaveRecord:
    """A checkpoint that a training has written and its hook has noted."""
    path = write_hf(home, step, at_s=START_S + at_s)
    whose = {"ordinal": ordinal, "nth": nth, "signature": signature, "output_dir": str(home)}
    return noted(path, "hf", step=step, t=START_S + at_s + 0.5, **whose)


def running(home: Path, nth: int = 1) -> TrainingReport:
    return TrainingReport(home=str(home), nth=nth)


def names(tmp_path: Path, saves: list[SaveRecord], run: TrainingReport | None) -> list[str]:
    found = look(tmp_path, saves=tuple(saves), running=run)
    return [f"{Path(one.path).parent.name}/{one.step}" for one in found]


def test_a_second_stage_in_the_same_directory_is_newer(tmp_path):
    """SFT to step 40, then DPO into the same directory, stopped at 15: its step 10 goes first."""
    home = tmp_path / "out"
    saves = [saved(home, 20, 10, 1, 1), saved(home, 40, 20, 1, 1), saved(home, 10, 30, 2, 2)]
    assert names(tmp_path, saves, running(home, 2)) == ["out/10", "out/40", "out/20"]
    first = look(tmp_path, saves=tuple(saves), running=running(home, 2))[0]
    assert (first.ordinal, first.nth, first.how_checked) == (2, 2, "recorded")


def test_the_running_fold_goes_first_after_a_second_restart(tmp_path):
    """Folds 1 and 2 were trained again, and saved after fold 3, which was stopped again."""
    folds = [tmp_path / f"fold{number}" for number in (1, 2, 3)]
    saves = [
        saved(folds[2], 20, 30, 3, 1),
        saved(folds[0], 40, 50, 1, 1),
        saved(folds[1], 40, 60, 2, 1),
    ]
    assert names(tmp_path, saves, running(folds[2]))[0] == "fold3/20"
    # Before its first save the newest is of the fold before: that one is at its end at once.
    assert names(tmp_path, saves[1:], running(folds[2]))[0] == "fold2/40"


def test_a_task_that_was_delivered_again_counts_anew(tmp_path):
    """Its first attempt was the second training of a worker, its next the first: steps decide."""
    home = tmp_path / "task-b"
    saves = [saved(home, 20, 10, 2, 1), saved(home, 30, 40, 1, 1)]
    assert names(tmp_path, saves, running(home)) == ["task-b/30", "task-b/20"]


def test_a_save_without_a_record_is_of_the_training_that_ran(tmp_path):
    """Killed between the save and its record: whole, and of the stage that ran, not of the last."""
    home = tmp_path / "out"
    saves = [saved(home, 20, 10, 1, 1), saved(home, 40, 20, 1, 1)]
    write_hf(home, 10, at_s=START_S + 30)
    first = look(tmp_path, saves=tuple(saves), running=running(home, 2))[0]
    assert (first.step, first.nth, first.ordinal) == (10, 2, None)
    unknown = look(tmp_path, saves=tuple(saves))[0]
    assert unknown.step == 40


def test_a_directory_that_was_written_over_is_not_the_recorded_ones(tmp_path):
    """Stage 1 of the next attempt has saved over stage 2's checkpoint-10, and was killed then."""
    home = tmp_path / "out"
    old = saved(home, 10, 30, 2, 2, "b")
    write_hf(home, 10, at_s=START_S + 90, config__json=b'{"model_type": "other"}\n')
    (found,) = look(tmp_path, saves=(old,), running=running(home, 1))
    assert (found.nth, found.ordinal, found.signature) == (1, None, None)


def test_a_save_whose_record_was_lost_is_of_the_fit_beside_it(tmp_path):
    """Killed between a save and its record: the other files of the directory tell whose it is."""
    write_files(tmp_path, {f"{name}.ckpt": lightning_zip(1) for name in "abc"})

    def of_c(other: int) -> tuple[int | None, str | None]:
        ordinals = {"a": 2, "b": other}
        saves = tuple(
            noted(tmp_path / f"{name}.ckpt", "lightning", ordinal=ordinal, home="/home")
            for name, ordinal in ordinals.items()
        )
        found = {Path(one.path).stem: one for one in look(tmp_path, saves=saves)}
        return found["c"].ordinal, found["c"].home

    assert of_c(2) == (2, "/home")
    assert of_c(3) == (None, None)
