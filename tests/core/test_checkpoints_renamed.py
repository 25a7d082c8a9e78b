"""Saves that were renamed after their hook had noted them: they are found, and stay noted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.checkpoint_samples import look, noted, torch_zip, write_files, write_hf
from watchdog_train.checkpoints.copies import KeepRequest, keep
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.client import saves as client_saves
from watchdog_train.core.model import SaveRecord


def found_again(path: Path, kind: str = "torch", step: int = 80, at_s: float = 1.0) -> SaveRecord:
    """A note with the inodes by which the save is found under another name."""
    inodes = tuple(client_saves._inodes(str(path)))
    return noted(path, kind, step=step, t=at_s, attempt=1, inodes=inodes)


def saved(path: Path, **how: object) -> SaveRecord:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_zip())
    return found_again(path, **how)


def into_a_folder(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "step_80.part" / "state.pt")
    os.rename(out / "step_80.part", out / "step_80")
    return record, "step_80/state.pt"


def deeper(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "step_80.part" / "model" / "state.pt")
    shutil.move(out / "step_80.part", out / "step_80")
    return record, "step_80/model/state.pt"


def replaced(out: Path) -> tuple[SaveRecord, str]:
    (out / "ckpt.pt").write_bytes(torch_zip()[:-9])
    record = saved(out / "ckpt.pt.tmp")
    os.replace(out / "ckpt.pt.tmp", out / "ckpt.pt")
    return record, "ckpt.pt"


def out_of_a_folder(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "tmp" / "state.pt")
    shutil.move(out / "tmp" / "state.pt", out / "step_80.pt")
    (out / "tmp").rmdir()
    return record, "step_80.pt"


def into_another_folder(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "tmp-81" / "state.pt")
    (out / "step_80").mkdir()
    os.rename(out / "tmp-81" / "state.pt", out / "step_80" / "state.pt")
    (out / "tmp-81").rmdir()
    return record, "step_80/state.pt"


def behind_a_link(out: Path) -> tuple[SaveRecord, str]:
    for name in ("a", "b"):
        write_files(out / name, {"other.pt": torch_zip()[:-9]})
    (out / "now").symlink_to("a")
    record = saved(out / "now" / "state.pt")
    (out / "now").unlink()
    (out / "now").symlink_to("b")
    return record, "a/state.pt"


def kept_as_the_one_before(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "ckpt.pt")
    os.replace(out / "ckpt.pt", out / "ckpt.before.pt")
    (out / "ckpt.pt").write_bytes(torch_zip()[:-9])
    return record, "ckpt.before.pt"


def copied_with_its_times(out: Path) -> tuple[SaveRecord, str]:
    record = saved(out / "scratch" / "state.pt")
    shutil.copy2(out / "scratch" / "state.pt", out / "step_80.pt")
    shutil.rmtree(out / "scratch")
    return record, "step_80.pt"


def of_a_trainer(out: Path) -> tuple[SaveRecord, str]:
    write_hf(out, 80).rename(out / "tmp-checkpoint-80")
    record = found_again(out / "tmp-checkpoint-80", "hf")
    os.rename(out / "tmp-checkpoint-80", out / "checkpoint-80")
    return record, "checkpoint-80"


def to_another_file_system(out: Path) -> tuple[SaveRecord, str]:
    record = copied_with_its_times(out)[0]
    (out / "gen-80").mkdir()
    shutil.copy2(out / "step_80.pt", out / "gen-80" / "state.pt")
    return record, "gen-80/state.pt"


@pytest.mark.parametrize("moved", [to_another_file_system, copied_with_its_times])
@pytest.mark.parametrize("named", ["cwd", "command", "linked"])
def test_a_save_that_was_moved_to_another_file_system_is_found_below_the_working_directory(
    tmp_path: Path, moved: Callable[[Path], tuple[SaveRecord, str]], named: str
) -> None:
    """As a copy with its size and time, the same name first; a copy that wtrain kept is none."""
    work, out = tmp_path / "work", tmp_path / "far" / "out"
    for each in (work, out):
        each.mkdir(parents=True)
    record, name = moved(out)
    far = tmp_path / "scratch" / "gone"
    record = replace(record, path=str(far / "state.pt"), inodes=())
    kept = work / "runs" / "x-1"
    write_files(kept, {"events.jsonl": b""})
    (kept / "attempts").mkdir()
    shutil.copy2(out / name, kept / "state.pt")
    where = {"cwd": {"cwd": str(out)}, "command": {"argv": ("a", f"--x={out}"), "cwd": str(work)}}
    (work / "snapshots").symlink_to(out)
    asked = where.get(named, {"cwd": str(work)})
    found = look(tmp_path / "none", saves=(record,), **asked)
    assert [(os.path.realpath(one.path), one.how_checked) for one in found][:1] == [
        (str(out / name), "recorded")
    ]


def test_saves_that_are_nowhere_are_told(tmp_path: Path) -> None:
    records = [saved(tmp_path / f"scratch-{n}" / "state.pt", at_s=n) for n in (1, 2)]
    for record in records:
        shutil.rmtree(Path(record.path).parent)
    request = SurveyRequest(saves=tuple(records), cwd=str(tmp_path), settle_s=0.0)
    assert survey(request).gone == (
        f"2 noted saves are gone, the newest {tmp_path}/scratch-2/state.pt; "
        "--checkpoints DIR names where to look"
    )
    newer = saved(tmp_path / "ckpt.pt")
    assert survey(replace(request, saves=(*records, newer))).gone is None


@pytest.mark.parametrize(
    "name", ["mb0030.tar", "mb0030.pkl", "mb0030.model", "mb0030.bin", "mb0030", "mb0030.state"]
)
def test_a_noted_save_is_a_checkpoint_whatever_its_suffix(tmp_path: Path, name: str) -> None:
    """Without a note by its first bytes, where the suffix is a usual one."""
    record = saved(tmp_path / "sweep1" / name)
    write_files(tmp_path / "sweep1", {f"data{Path(name).suffix}": b"PK\3\4 of another kind"})
    noted_ones = look(tmp_path, saves=(record,))
    assert [(one.path, one.how_checked) for one in noted_ones] == [(record.path, "recorded")]
    assert look(tmp_path, saves=(record,), level="noted")[0].path == record.path
    unknown = name.endswith(".state")
    assert [one.path for one in look(tmp_path)] == [record.path] * (not unknown)


def test_a_file_of_a_framework_and_one_that_is_being_written_are_no_checkpoints(
    tmp_path: Path,
) -> None:
    folder = write_hf(tmp_path, 20)
    part, shard = saved(folder / "extra.state"), saved(tmp_path / "dcp" / "__0_0.distcp")
    cut = saved(tmp_path / "state.part")
    found = look(tmp_path, saves=(part, shard, cut))
    assert {one.path: one.whole for one in found} == {
        str(folder): True, str(tmp_path / "dcp"): False, cut.path: False,
    }  # fmt: skip


def test_an_open_file_that_was_noted_before_it_was_closed(tmp_path: Path) -> None:
    """It goes before older saves if it is whole by itself; under the name that it has now."""
    older = saved(tmp_path / "sweep1" / "mb0040.pth", at_s=1.0)
    opened = replace(saved(tmp_path / "sweep2" / "tmp", at_s=2.0, step=50), files={})
    os.rename(opened.path, tmp_path / "sweep2" / "mb0010.pth")
    newest = look(tmp_path / "sweep1", saves=(older, opened))[0]
    assert (Path(newest.path).name, newest.whole, newest.step) == ("mb0010.pth", True, 50)
    Path(newest.path).write_bytes(torch_zip()[:-9])
    found = look(tmp_path / "sweep1", saves=(older, opened))
    assert [(Path(one.path).name, one.whole) for one in found if one.whole] == [
        ("mb0040.pth", True)
    ]


WAYS = (
    into_a_folder, deeper, replaced, out_of_a_folder, into_another_folder, behind_a_link,
    kept_as_the_one_before, copied_with_its_times, of_a_trainer,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("known", [True, False], ids=["known place", "unknown place"])
def test_a_save_is_found_after_it_was_renamed(
    tmp_path: Path, way: Callable[[Path], tuple[SaveRecord, str]], known: bool
) -> None:
    """Whole by its record, with the step of that; also where no option names the folder."""
    out = tmp_path / "run" / "ckpt"
    out.mkdir(parents=True)
    record, name = way(out)
    found = look(out if known else tmp_path / "none", saves=(record,))
    whole = [(one.path, one.how_checked, one.step) for one in found if one.whole]
    assert whole == [(str(out / name), "recorded", 80)]


def test_a_folder_that_was_not_renamed_any_more_comes_after_a_finished_one(tmp_path: Path) -> None:
    """More files may have been to come; alone it is better than nothing."""
    finished, _ = into_a_folder(tmp_path)
    cut = saved(tmp_path / "step_100.part" / "state.pt", step=100, at_s=2.0)
    found = {one.step: one.whole for one in look(tmp_path, saves=(finished, cut))}
    assert found == {80: True, 100: None}
    plain = saved(tmp_path / "tmp_models" / "state.pt", step=9)
    assert look(tmp_path / "tmp_models", saves=(plain,))[0].whole


def test_an_inode_that_is_used_again_is_not_the_save(tmp_path: Path) -> None:
    """A file system gives the number of a removed file to the next one."""
    record = saved(tmp_path / "step_20.pt")
    other = tmp_path / "step_40.pt"
    (tmp_path / "step_20.pt").rename(other)
    other.write_bytes(torch_zip(b"another"))
    (found,) = look(tmp_path, saves=(record,))
    assert (found.path, found.how_checked) == (str(other), "quick")


def test_a_copy_follows_a_save_that_was_renamed(tmp_path: Path) -> None:
    record, name = into_a_folder(tmp_path)
    copy = str(tmp_path / "kept" / "state.pt")
    answer = keep(KeepRequest(save=record, copy=copy, most_bytes=1 << 30))
    assert (answer.problem, answer.path) == (None, str(tmp_path / name))


def test_an_open_file_whose_folder_was_renamed_is_noted(tmp_path: Path) -> None:
    """It is noted when it is closed, and by then its folder has its last name."""
    path = tmp_path / "step_80.part" / "state.pt"
    path.parent.mkdir()
    path.write_bytes(b"x")
    inodes = client_saves._inodes(str(path))
    path.parent.rename(tmp_path / "step_80")
    assert client_saves._named_now(str(path), inodes) == str(tmp_path / "step_80" / "state.pt")
