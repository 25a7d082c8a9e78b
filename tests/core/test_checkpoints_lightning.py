"""Lightning's checkpoints: known by what is in them, newest by time, weights alone left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checkpoint_samples import lightning_zip, look, only, torch_zip, write_files
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core.model import SaveRecord


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("step", [0, 7, 300, 70_000, 2**40])
def test_the_step_is_read_without_unpickling(tmp_path, protocol, step):
    """Whatever the file is called, and whatever the protocol of its pickle."""
    write_files(tmp_path, {"epoch=3-val_loss=0.25.ckpt": lightning_zip(step, protocol=protocol)})
    finding = only(tmp_path)
    assert (finding.format, finding.step, finding.whole) == ("lightning", step, True)


def test_what_a_batch_system_made_lightning_save_is_one_too(tmp_path):
    """hpc_ckpt_N.ckpt holds what the others hold; a training that was saved so goes on from it."""
    write_files(
        tmp_path, {"epoch=0-step=4.ckpt": lightning_zip(4), "hpc_ckpt_1.ckpt": lightning_zip(6)}
    )
    told = [(os.path.basename(item.path), item.format, item.step) for item in look(tmp_path)]
    assert told[0] == ("hpc_ckpt_1.ckpt", "lightning", 6)


class Bomb:
    """Unpickled it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_in_it_is_never_run(tmp_path):
    """Neither before nor after the keys that are looked for."""
    content = lightning_zip(5, bomb=Bomb(tmp_path / "boom"))
    write_files(tmp_path / "out", {"last.ckpt": content})
    assert only(tmp_path / "out", level="full").step == 5
    assert not (tmp_path / "boom").exists()


def test_weights_alone_are_no_checkpoint_of_lightnings(tmp_path):
    """save_weights_only: fit() would fail on them, so they are plain files of torch.save."""
    write_files(
        tmp_path, {"best.ckpt": lightning_zip(9, weights_only=True), "last.ckpt": lightning_zip(8)}
    )
    told = {os.path.basename(item.path): item.format for item in look(tmp_path)}
    assert told == {"best.ckpt": "torch", "last.ckpt": "lightning"}


def test_other_files_of_torch_save_stay_what_they_are(tmp_path):
    """The suffix .ckpt alone says nothing; the tuner's hidden files are nobody's checkpoint."""
    write_files(
        tmp_path,
        {
            "model.ckpt": torch_zip(),
            ".lr_find_1f3a.ckpt": lightning_zip(1),
            "readme.ckpt": b"hello, this is something else",
        },
    )
    told = {os.path.basename(item.path): item.format for item in look(tmp_path)}
    assert told == {"model.ckpt": "torch", "readme.ckpt": "torch"}


def test_one_that_was_cut_short_is_still_known_and_is_not_whole(tmp_path):
    """Lightning below 2.1 writes in place; the beginning tells what it would have been."""
    write_files(tmp_path, {"last.ckpt": lightning_zip(20)[:-200]})
    finding = only(tmp_path)
    assert (finding.format, finding.step, finding.whole) == ("lightning", 20, False)


def test_the_newest_by_time_comes_first(tmp_path):
    """A second fit into one directory counts from zero again, and top-k keeps old steps."""
    files = {"a.ckpt": 100, "b.ckpt": 200, "c.ckpt": 50}
    write_files(tmp_path, {name: lightning_zip(step) for name, step in files.items()})
    assert [item.step for item in look(tmp_path)] == [50, 200, 100]


def recorded(path: Path, **fields: object) -> SaveRecord:
    status = path.stat()
    sizes = {path.name: (status.st_size, status.st_mtime_ns)}
    return SaveRecord(path=str(path), format="lightning", files=sizes, **fields)


def findings(*records: SaveRecord) -> dict[str, tuple[int | None, str | None]]:
    request = SurveyRequest(saves=records, settle_s=0.0, check="all")
    found = survey(request).findings
    return {os.path.basename(item.path): (item.ordinal, item.home) for item in found}


def test_a_save_whose_record_was_lost_is_of_the_fit_beside_it(tmp_path):
    """Killed between a save and its record: the other files of the directory tell whose it is."""
    write_files(tmp_path, {name: lightning_zip(1) for name in ("a.ckpt", "b.ckpt", "c.ckpt")})
    first = recorded(tmp_path / "a.ckpt", ordinal=2, home="/home")
    second = recorded(tmp_path / "b.ckpt", ordinal=2, home="/home")
    assert findings(first, second)["c.ckpt"] == (2, "/home")
    other = recorded(tmp_path / "b.ckpt", ordinal=3, home="/home")
    assert findings(first, other)["c.ckpt"] == (None, None)
