"""Copies of files that are overwritten in place: when they are made, and what they are used for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.checkpoint_samples import LEGACY, torch_zip
from tests.core import builders as b
from watchdog_train.checkpoints.keep import KeepRequest, keep
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core import events as e
from watchdog_train.core.actions import KeepCopy, Record
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import KeepAnswer, KeptCopy, SaveRecord
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery import keeping


def save(path: str = "/out/ckpt.pt", *, at: int = 5, size: int = 100, **changes: Any) -> SaveRecord:
    record = SaveRecord(
        path=path,
        format="torch",
        step=at,
        t=float(at),
        files={os.path.basename(path): (size, at * 10**9)},
    )
    return msgspec.structs.replace(record, **changes)


def decided(state: State, *saves: SaveRecord, at: float = 100.0, **seen: Any) -> Any:
    changes = {"saves_begun": 1, "saves_ended": 1} | seen.pop("slot", {})
    poll = b.sample(at, b.rank(words=3, **changes))
    recovery = Recovery(**seen.pop("recovery", {}))
    observation = b.observation(poll, saves=saves, verdict=Verdict(kind="alive"), **seen)
    return keeping.keep(observation, state, Policy(recovery=recovery), {})


def kept(at: float, mono: float, seconds: float = 1.0) -> State:
    one = KeptCopy(
        path="/out/ckpt.pt", copy="/r/ckpt.pt", format="torch", step=1, saved_at=at, seconds=seconds
    )
    return msgspec.structs.replace(b.running(), kept=(one,), kept_mono=mono)


def test_the_first_save_of_a_file_without_a_number_is_kept() -> None:
    """The next save would tear the only one there is."""
    assert decided(b.running(), save()) == KeepCopy(save=save())


@pytest.mark.parametrize(
    ("saves", "seen"),
    [
        ((), {}),
        ((save("/out/step-5.pt"),), {}),  # the next one has another name
        ((save(files={"model/0": (5, 5)}),), {}),  # a directory
        ((save(format="hf"),), {}),
        ((save(size=10**12),), {}),
        ((save(),), {"recovery": {"keep_bytes": 0}}),
        ((save(),), {"recovery": {"observe": True}}),
        ((save(),), {"slot": {"saves_begun": 2}}),  # the next save is under way
        ((save(),), {"running": frozenset({"keep"})}),
    ],
)
def test_when_nothing_is_copied(saves: tuple[SaveRecord, ...], seen: dict[str, Any]) -> None:
    """Where there will be another file, where it is switched off, and never in a save."""
    assert decided(b.running(), *saves, **seen) is None


def test_a_number_that_comes_twice_is_no_number() -> None:
    """resnet50.pt is overwritten as ckpt.pt is."""
    first, again = save("/out/resnet50.pt"), save("/out/resnet50.pt", at=9)
    assert decided(b.running(), first) is None
    assert decided(b.running(), first, again) == KeepCopy(save=again)


def test_copying_takes_a_twentieth_of_the_time() -> None:
    """One a minute, and more seldom where a copy takes long."""
    assert decided(kept(5.0, 90.0), save(at=9)) is None
    assert decided(kept(5.0, 30.0), save(at=9)) is not None
    assert decided(kept(5.0, 30.0, seconds=10.0), save(at=9)) is None
    assert decided(kept(9.0, 30.0), save(at=9)) is None, "that one is kept already"


def test_an_answer_is_recorded_and_remembered() -> None:
    """A failure too, and then it is left alone for a while."""
    good = KeepAnswer(path="/o/a.pt", copy="/r/a.pt", format="torch", step=3, saved_at=5.0)
    told = decided(b.running(), kept=good)
    assert isinstance(told, Record)
    assert told.consumes == ("keep",)
    state = b.running(*told.events)
    assert [one.copy for one in state.kept] == ["/r/a.pt"]
    bad = msgspec.structs.replace(good, problem="too little space is free for a copy")
    (event,) = decided(state, kept=bad).events
    assert isinstance(event, e.CheckpointNotKept)
    state = b.running(*told.events, event)
    assert [one.copy for one in state.kept] == ["/r/a.pt"], "the older copy stays"
    assert decided(state, save(at=9), at=300.0) is None
    assert decided(state, save(at=9), at=700.0) is not None


def noted(path: Path) -> SaveRecord:
    status = path.stat()
    files = {path.name: (status.st_size, status.st_mtime_ns)}
    return SaveRecord(path=str(path), format="torch", step=7, t=status.st_mtime, files=files)


def copied(tmp_path: Path, record: SaveRecord) -> KeepAnswer:
    copy = tmp_path / "run" / "kept" / "x" / os.path.basename(record.path)
    return keep(KeepRequest(save=record, copy=str(copy), out="", most_bytes=10**6))


def surveyed(path: Path, record: SaveRecord, answer: KeepAnswer) -> list[tuple[str, bool | None]]:
    one = KeptCopy(
        path=answer.path,
        copy=answer.copy,
        format=answer.format,
        step=answer.step,
        saved_at=answer.saved_at,
    )
    request = SurveyRequest(
        directories=(str(path.parent),), saves=(record,), kept=(one,), settle_s=0.0
    )
    return [(item.path, item.whole) for item in survey(request).findings]


@pytest.mark.parametrize("content", [torch_zip(), LEGACY])
def test_a_torn_file_gives_way_to_the_copy_that_was_kept(tmp_path: Path, content: bytes) -> None:
    """The copy is used only when the file itself is not whole any more."""
    path = tmp_path / "out" / "ckpt.pt"
    path.parent.mkdir()
    path.write_bytes(content)
    record = noted(path)
    answer = copied(tmp_path, record)
    assert answer.problem is None
    assert Path(answer.copy).read_bytes() == content
    assert surveyed(path, record, answer) == [(str(path), True)]
    path.write_bytes(content[: len(content) // 2])
    torn, copy = surveyed(path, record, answer)
    assert torn[1] is not True
    assert copy == (answer.copy, True)
    Path(answer.copy).unlink()
    assert surveyed(path, record, answer)[1] == (answer.copy, False)


def test_what_has_changed_since_is_not_copied(tmp_path: Path) -> None:
    """A copy of the next save in the middle is worth nothing; the older one stays."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(torch_zip())
    record = noted(path)
    answer = copied(tmp_path, record)
    path.write_bytes(torch_zip()[:50])
    again = copied(tmp_path, record)
    assert again.problem is not None
    assert "the next save has begun" in again.problem
    assert Path(answer.copy).read_bytes() == torch_zip()
    assert sorted(os.listdir(Path(answer.copy).parent)) == ["ckpt.pt"]
