"""The survey: where it looks, what the save hook's record decides, and what may not hurt it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint_samples import (
    LEGACY,
    look,
    noted,
    only,
    safetensors,
    torch_zip,
    write_files,
    write_hf,
)
from watchdog_train.checkpoints.disk import list_present
from watchdog_train.checkpoints.find import directories_in_arguments
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core.model import Survey
from watchdog_train.whole_files import replace_json

COMMAND = (sys.executable, "-m", "watchdog_train.checkpoints.survey")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--output_dir", "out"], ["/work dir/out"]),
        (["--output-dir=out"], ["/work dir/out"]),
        (["output_dir=out"], ["/work dir/out"]),
        (["--trainer.default_root_dir", "/abs"], ["/abs"]),
        (["--save_dir", "a", "--ckpt-dir=b"], ["/work dir/a", "/work dir/b"]),
        (["--output_dir", "--lr", "1"], []),
        (["--output_dir"], []),
        (["output_dir", "out"], []),
        (["--lr", "0.1"], []),
    ],
)
def test_known_arguments_name_directories(words, expected):
    found = directories_in_arguments(["python", "train.py", *words], "/work dir")
    assert list(found) == expected


def test_an_argument_that_names_a_file_means_its_directory(tmp_path):
    (tmp_path / "model.pt").write_bytes(torch_zip())
    assert directories_in_arguments(["x", "--save_path", "model.pt"], str(tmp_path)) == (
        str(tmp_path),
    )


def test_places_come_from_records_arguments_and_notes(tmp_path):
    for name in ("noted", "argued", "recorded"):
        write_files(tmp_path / name, {"model.pt": torch_zip()})
    request = SurveyRequest(
        directories=(str(tmp_path / "noted"),),
        saves=(noted(tmp_path / "recorded" / "model.pt", "torch"),),
        argv=("python", "train.py", "--out_dir=argued"),
        cwd=str(tmp_path),
        settle_s=0.0,
    )
    assert len(survey(request).findings) == 3
    alone = msgspec.structs.replace(request, only_directories=True)
    assert [item.path for item in survey(alone).findings] == [str(tmp_path / "noted" / "model.pt")]


def test_an_unchanged_record_beats_every_heuristic(tmp_path):
    """A legacy pickle and a stale witness are whole where the hook has seen the save end."""
    legacy = tmp_path / "model.pth"
    legacy.write_bytes(LEGACY)
    stale = write_hf(tmp_path, 20)
    os.utime(stale / "model.safetensors", (2_000_000, 2_000_000))
    saves = (noted(legacy, "torch", step=30), noted(stale, "hf", step=20, ordinal=2))
    for level in ("quick", "full"):
        hf, torch = look(tmp_path, saves=saves, level=level)
        assert (hf.whole, hf.how_checked, hf.ordinal) == (True, "recorded", 2)
        assert (torch.whole, torch.how_checked, torch.step) == (True, "recorded", 30)


def test_a_changed_file_falls_back_to_the_checks(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(torch_zip())
    saves = (noted(path, "torch"),)
    path.write_bytes(torch_zip()[:-4])
    finding = only(tmp_path, saves=saves)
    assert finding.whole is False
    assert "changed since" in finding.said


def test_a_new_save_over_a_recorded_directory_is_not_whole(tmp_path):
    """A marker that the record does not know means that a later save has begun."""
    path = write_hf(tmp_path, 20)
    saves = (noted(path, "hf"),)
    (path / "checkpoint-is-incomplete.txt").write_bytes(b"")
    assert only(tmp_path, saves=saves).whole is False


def test_damage_below_an_unchanged_record_is_found_in_full(tmp_path):
    """Size and time as noted, but a checksum is wrong: a disk that lost what it had promised."""
    path = tmp_path / "model.pt"
    content = bytearray(torch_zip())
    path.write_bytes(content)
    os.utime(path, (1e6, 1e6))
    saves = (noted(path, "torch"),)
    content[content.index(bytes(range(64)))] ^= 1
    path.write_bytes(content)
    os.utime(path, (1e6, 1e6))
    assert only(tmp_path, saves=saves).whole is True
    assert only(tmp_path, saves=saves, level="full").whole is False


def test_shards_that_were_noted_one_by_one_are_recorded(tmp_path):
    name = "model-00001-of-00001.safetensors"
    index = json.dumps({"weight_map": {"a": name}}).encode()
    write_files(tmp_path, {name: safetensors(("a",)), "model.safetensors.index.json": index})
    saves = tuple(noted(item, "safetensors") for item in tmp_path.iterdir())
    assert only(tmp_path, saves=saves).how_checked == "recorded"


def test_after_failed_scans_only_unchanged_saves_count(tmp_path):
    """By size and time alone, in the directories of the newest saves, the newest first."""
    first, second = write_hf(tmp_path / "hf", 20), write_hf(tmp_path / "hf", 40)
    write_files(tmp_path / "own", {"step-5.pt": torch_zip(), "optimizer.pt": torch_zip()})
    own = tmp_path / "own"
    saves = (
        noted(first, "hf", t=1.0),
        noted(second, "hf", t=2.0),
        noted(own / "step-5.pt", "torch", t=3.0),
        noted(own / "optimizer.pt", "torch", t=4.0),
    )
    write_hf(tmp_path / "hf", 60)  # complete, and no hook has seen it
    request = SurveyRequest(saves=saves, level="noted", settle_s=0.0)
    steps = [(item.step, item.whole, item.how_checked) for item in survey(request).findings]
    assert steps == [(step, True, "recorded") for step in (40, 20, 5)]
    (second / "optimizer.pt").write_bytes(torch_zip()[:-9])
    assert [item.step for item in survey(request).findings] == [20, 5]
    named = msgspec.structs.replace(request, only_directories=True, directories=(str(own),))
    assert [item.step for item in survey(named).findings] == [5]
    (own / "step-5.pt").unlink()
    none = survey(named)
    assert (none.findings, none.failed) == ((), True)
    assert "unchanged" in (none.problem or "")


@pytest.mark.skipif(sys.platform != "linux", reason="a directory that answers with an error")
def test_a_place_that_gives_an_error_is_not_one_without_checkpoints(tmp_path):
    """As NFS or FUSE does when its server is gone. What is not there, or not allowed, is known."""
    gone = subprocess.Popen(["sleep", "60"])
    held = os.open(f"/proc/{gone.pid}/task", os.O_RDONLY | os.O_DIRECTORY)
    gone.kill()
    gone.wait()
    broken = f"/proc/self/fd/{held}"  # scandir: ESRCH
    try:
        request = SurveyRequest(directories=(broken, str(tmp_path / "none")), settle_s=0.0)
        found = survey(request)
        assert found.failed
        assert broken in (found.problem or "")
        write_hf(tmp_path / "out", 20)
        both = msgspec.structs.replace(request, directories=(broken, str(tmp_path / "out")))
        assert not survey(both).failed
    finally:
        os.close(held)
    assert not survey(SurveyRequest(directories=(str(tmp_path / "none"),))).failed


def test_what_was_there_when_the_run_began_is_told_by_a_look_at_that_time(tmp_path):
    """A file server's clock may be an hour behind, and `rsync -t` keeps the times of a copy."""
    (tmp_path / "out").mkdir()
    for name in ("old.pt", "ckpt.pt"):
        (tmp_path / "out" / name).write_bytes(torch_zip())
    write_hf(tmp_path / "out", 10)
    note = tmp_path / "present.json"
    replace_json(note, list_present([str(tmp_path)]))
    now = time.time()
    for name in ("ckpt.pt", "new.pt"):
        (tmp_path / "out" / name).write_bytes(torch_zip(b"another"))
        os.utime(tmp_path / "out" / name, (now - 3600, now - 3600))
    write_hf(tmp_path / "out", 20)
    found = look(tmp_path / "out", began=now, present=str(note))
    before = {Path(one.path).name: one.before_run for one in found}
    assert before == {
        "old.pt": True, "ckpt.pt": False, "new.pt": False,
        "checkpoint-10": True, "checkpoint-20": False,
    }  # fmt: skip
    unseen = look(tmp_path / "out", began=now)  # nobody has looked: by the file system's own time
    assert not any(one.before_run for one in unseen)
    assert all(one.before_run for one in look(tmp_path / "out", began=now + 60))
    assert not any(one.before_run for one in look(tmp_path / "out"))


def test_what_was_not_looked_at_is_not_called_new(tmp_path):
    """Hidden folders and links are left out, and a look may end before it has seen everything."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a.pt").write_bytes(torch_zip())
    present = list_present([str(tmp_path)])
    size = {"a.pt": (5, 5)}
    assert present.held(str(tmp_path / ".cache" / "a.pt"), size) is None
    assert present.held(str(tmp_path / "new" / "a.pt"), size) is False
    assert present.held("/elsewhere/a.pt", size) is None
    cut = msgspec.structs.replace(present, complete=False)
    assert cut.held(str(tmp_path / "new" / "a.pt"), size) is None


def test_what_grows_while_we_look_is_still_being_written(tmp_path):
    """A file that changes between two looks is not valid; nobody waits for old ones."""
    path = tmp_path / "new" / "model.pt"
    write_files(tmp_path / "old", {"model.pt": torch_zip()})
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        with path.open("ab") as file:
            file.write(b"x")

    request = SurveyRequest(directories=(str(tmp_path),))
    assert survey(request, wait=wait).findings[0].whole is True
    assert waited == []
    path.parent.mkdir()
    path.write_bytes(torch_zip())
    newest, older = survey(request, wait=wait).findings
    assert (waited, newest.whole, older.whole) == ([2.0], False, True)
    assert "still being written" in newest.said


def test_the_first_whole_one_ends_the_expensive_checks(tmp_path):
    """Older ones than the newest whole are looked at quickly, except around a kill."""
    for number in (1, 2, 3):
        write_files(tmp_path, {f"ckpt_{number}.pt": torch_zip()}, at_s=1_000_000 + number)
    levels = [item.how_checked for item in look(tmp_path, level="full", check="until-whole")]
    assert levels == ["full", "quick", "quick"]
    levels = [item.how_checked for item in look(tmp_path, full_since=1_000_001.5)]
    assert levels == ["full", "full", "quick"]


def test_no_time_left_is_said_and_not_called_full(tmp_path):
    """When the budget is spent the quick answer stands under its own name."""
    (tmp_path / "model.pt").write_bytes(torch_zip())
    finding = only(tmp_path, level="full", budget_s=-1.0)
    assert (finding.whole, finding.how_checked) == (True, "quick")
    assert "no time" in finding.said


def test_the_command_writes_an_answer_that_decodes(tmp_path):
    write_hf(tmp_path / "out", 20)
    (tmp_path / "out" / "checkpoint-99999999999999999999").mkdir()
    with open(os.fsencode(tmp_path / "out") + b"/bad\xff.pt", "wb") as file:
        file.write(torch_zip())
    request = SurveyRequest(
        directories=(str(tmp_path / "out"),), out=str(tmp_path / "survey.json"), settle_s=0.0
    )
    (tmp_path / "request.json").write_bytes(msgspec.json.encode(request))
    subprocess.run([*COMMAND, str(tmp_path / "request.json")], check=True)
    answer = msgspec.json.decode((tmp_path / "survey.json").read_bytes(), type=Survey)
    assert answer.newest_whole.step == 20
    assert sorted(os.listdir(tmp_path)) == ["out", "request.json", "survey.json"]


# -- what may not hurt it -------------------------------------------------------------------


def test_a_fifo_named_like_a_checkpoint_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "model.pt")
    os.mkfifo(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "model.bin")
    path = write_hf(tmp_path, 20, trainer_state__json=None)
    os.mkfifo(path / "trainer_state.json")
    started = time.monotonic()
    finding = only(tmp_path)
    assert time.monotonic() - started < 20
    assert finding.whole is not True


def test_links_are_followed_only_to_checkpoints(tmp_path):
    """A loop is walked once, a checkpoint on another disk is found, a data set is not entered."""
    write_hf(tmp_path / "disk", 20)
    write_files(tmp_path / "data", {"model.pt": torch_zip()})
    out = tmp_path / "out"
    write_hf(out / "real", 10)
    for link, target in {
        "loop": out, "real/up": out, "self": out / "self", "data": tmp_path / "data",
        "checkpoint-10": out / "real" / "checkpoint-10",
        "checkpoint-20": tmp_path / "disk" / "checkpoint-20",
    }.items():  # fmt: skip
        (out / link).symlink_to(target)
    assert [item.step for item in look(out)] == [20, 10]


def test_depth_is_bounded(tmp_path):
    write_files(tmp_path / "a" / "b" / "c", {"model.pt": torch_zip()})
    write_files(tmp_path / "a" / "b" / "c" / "d", {"model.pt": torch_zip()})
    assert only(tmp_path).path == str(tmp_path / "a" / "b" / "c" / "model.pt")


def test_among_twenty_thousand_files_the_newest_and_the_noted_are_seen(tmp_path):
    """Within seconds, whatever the order of the directory; and that it was cut is said."""
    for number in range(20_000):
        (tmp_path / f"ckpt_{number}.pt").touch()
        os.utime(tmp_path / f"ckpt_{number}.pt", (1e6, 1e6))
    write_files(tmp_path, {"ckpt_7.pt": torch_zip()}, at_s=5e5)
    write_files(tmp_path, {"last.pt": torch_zip()}, at_s=2e6)
    started = time.monotonic()
    save = noted(tmp_path / "ckpt_7.pt", "torch", attempt=1, t=1.0)
    answer = survey(SurveyRequest(directories=(str(tmp_path),), saves=(save,), settle_s=0.0))
    assert time.monotonic() - started < 60
    assert answer.cut
    assert "only the newest 10000 entries" in (answer.problem or "")
    whole = [Path(one.path).name for one in answer.findings if one.whole]
    assert whole == ["ckpt_7.pt", "last.pt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_a_problem_not_an_error(tmp_path):
    (tmp_path / "locked").mkdir(mode=0)
    answer = survey(SurveyRequest(directories=(str(tmp_path),), settle_s=0.0))
    assert answer.problem is not None


def test_giant_files_are_not_read(tmp_path):
    """Sparse, of a gigabyte, with a header within it: over the caps, and unknown in no time."""
    path = write_hf(tmp_path / "hf", 20)
    (tmp_path / "model.safetensors").write_bytes((1 << 29).to_bytes(8, "little"))
    for giant in (path / "trainer_state.json", tmp_path / "model.safetensors"):
        os.truncate(giant, 1 << 30)
    hf, tensors = look(tmp_path)
    assert (hf.whole, tensors.whole) == (None, None)
    assert "larger than" in hf.said
    assert "too large" in tensors.said
