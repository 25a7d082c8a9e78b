"""timm and ultralytics: known by their first keys, newest by what each counts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from tests.checkpoint_samples import look, only, torch_zip, write_files


def timm(epoch: int) -> bytes:
    content = {"epoch": epoch, "arch": "resnet18", "optimizer": {}, "version": 2, "state_dict": {}}
    return torch_zip(pickle=pickle.dumps(content, protocol=2))


def ultralytics(epoch: int, *, stripped: bool = False) -> bytes:
    content = {"epoch": epoch, "best_fitness": 0.5, "stopper": {}, "ema": {}, "optimizer": {}}
    if stripped:  # as strip_optimizer merges it
        content = {"date": "2026-11-22", "version": "8.4", "epoch": -1, "best_fitness": None}
    return torch_zip(pickle=pickle.dumps(content, protocol=2))


def names(directory: Path) -> list[tuple[str, str, bool | None]]:
    found = look(directory)
    return [(os.path.basename(item.path), item.format, item.whole) for item in found]


def test_the_newest_of_timm_is_last_before_its_links(tmp_path):
    """A hard link to what is last comes after it; a number in a name is an epoch."""
    write_files(tmp_path, {"checkpoint-3.pth.tar": timm(3), "last.pth.tar": timm(4)})
    os.link(tmp_path / "last.pth.tar", tmp_path / "checkpoint-4.pth.tar")
    assert names(tmp_path) == [
        ("last.pth.tar", "timm", True),
        ("checkpoint-4.pth.tar", "timm", True),
        ("checkpoint-3.pth.tar", "timm", True),
    ]
    assert {item.step for item in look(tmp_path)} == {None}


def test_a_recovery_file_of_timm_is_newer_than_the_epoch_before(tmp_path):
    """It was saved in the middle of the next one; a file under a temporary name is not finished."""
    write_files(
        tmp_path,
        {
            "last.pth.tar": timm(4),
            "recovery-4-500.pth.tar": timm(4),
            "recovery_tmp.pth.tar": timm(4),
        },
    )
    assert names(tmp_path) == [
        ("recovery_tmp.pth.tar", "timm", False),
        ("recovery-4-500.pth.tar", "timm", True),
        ("last.pth.tar", "timm", True),
    ]


def test_a_torn_last_of_ultralytics_gives_way_to_the_best(tmp_path):
    """last.pt is overwritten in place; best.pt may be the same epoch or an older one."""
    write_files(
        tmp_path / "weights",
        {"best.pt": ultralytics(5), "epoch0.pt": ultralytics(0), "last.pt": ultralytics(7)[:-30]},
    )
    assert names(tmp_path) == [
        ("last.pt", "ultralytics", False),
        ("best.pt", "ultralytics", True),
        ("epoch0.pt", "ultralytics", True),
    ]


def test_a_training_that_has_ended_is_nothing_to_go_on_from(tmp_path):
    """strip_optimizer leaves weights alone in last.pt."""
    write_files(tmp_path, {"last.pt": ultralytics(9, stripped=True)})
    finding = only(tmp_path)
    assert (finding.format, finding.whole) == ("ultralytics", False)
    assert "stripped" in finding.said


def test_other_files_of_the_same_names_stay_what_they_are(tmp_path):
    """last.pt and last.pth.tar of a plain loop are plain files of torch.save."""
    write_files(tmp_path, {"last.pt": torch_zip(), "last.pth.tar": torch_zip()})
    assert {kind for _, kind, _ in names(tmp_path)} == {"torch"}
