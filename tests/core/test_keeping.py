"""Copies of files that are overwritten in place: when they are made, and what they are used for."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.checkpoint_samples import LEGACY, look, noted, torch_zip
from tests.core import builders as b
from watchdog_train.checkpoints import copies
from watchdog_train.checkpoints.copies import KeepRequest, RestoreRequest, keep, restore
from watchdog_train.checkpoints.pickle_head import counters
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.actions import KeepCopy, Launch, Record, RestoreCopy, StartSurvey, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery import keeping
from watchdog_train.report.why_text import why_text


def save(
    path: str = "/out/ckpt.pt", *, at: int = 5, size: int = 100, **changes: Any
) -> m.SaveRecord:
    record = m.SaveRecord(
        path=path,
        format="torch",
        step=at,
        t=float(at),
        files={os.path.basename(path): (size, at * 10**9)},
    )
    return replace(record, **changes)


def decided(state: State, *saves: m.SaveRecord, at: float = 100.0, **seen: Any) -> Any:
    changes = {"saves_begun": 1, "saves_ended": 1} | seen.pop("slot", {})
    poll = b.sample(at, b.rank(words=3, **changes))
    recovery = Recovery(**seen.pop("recovery", {}))
    observation = b.observation(poll, saves=saves, verdict=Verdict(kind="alive"), **seen)
    return keeping.keep(observation, state, Policy(recovery=recovery))


def kept(at: float, mono: float, seconds: float = 1.0) -> State:
    one = m.KeptCopy(
        path="/out/ckpt.pt", copy="/r/ckpt.pt", format="torch", step=1, saved_at=at, seconds=seconds
    )
    return replace(b.running(), kept=(one,), kept_mono=mono)


@pytest.mark.parametrize(
    ("saves", "seen"),
    [
        ((), {}),
        ((save("/out/step-5.pt"),), {}),  # the next one has another name
        ((save(files={"model/0": (5, 5)}),), {}),  # a directory
        ((save(format="hf"),), {}),
        ((save("/out/ckpt.pt.tmp"),), {}),  # renamed by the next moment
        ((save("/out/optimizer.pt"),), {}),  # nothing resumes from it alone
        ((save(size=10**12),), {}),
        ((save(),), {"recovery": {"keep_bytes": 0}}),
        ((save(),), {"recovery": {"observe": True}}),
        ((save(),), {"slot": {"saves_begun": 2}}),  # the next save is under way
        ((save(),), {"running": frozenset({"keep"})}),
    ],
)
def test_when_nothing_is_copied(saves: tuple[m.SaveRecord, ...], seen: dict[str, Any]) -> None:
    """Where there will be another file, where it is switched off, and never in a save."""
    assert decided(b.running(), *saves, **seen) is None


NET, NET_AGAIN = save("/out/resnet50.pt"), save("/out/resnet50.pt", at=9)
PART, NEXT_PART = save("/out/20.part/state.pt"), save("/out/40.part/state.pt", at=9)
RENAMED = save("/out/now.part/ckpt.pt", at=5)


@pytest.mark.parametrize(
    ("state", "saves", "copied"),
    [
        (b.running(), (save(),), True),  # the next save would tear the only one there is
        (b.running(), (NET,), False),
        (b.running(), (NET, NET_AGAIN), True),  # a number that comes twice is no number
        (b.running(), (PART, NEXT_PART), False),  # the same name in another folder
        (kept(5.0, 30.0), (RENAMED,), False),  # it is kept under its later name
        (kept(4.0, 30.0), (RENAMED,), True),
        (kept(5.0, 90.0), (save(at=9),), False),  # one a minute
        (kept(5.0, 30.0), (save(at=9),), True),
        (kept(5.0, 30.0, seconds=10.0), (save(at=9),), False),  # a twentieth of the time
        (kept(9.0, 30.0), (save(at=9),), False),  # that one is kept already
    ],
)
def test_which_save_is_copied(state: State, saves: tuple[m.SaveRecord, ...], copied: bool) -> None:
    """The newest of a file that is overwritten in place."""
    assert decided(state, *saves) == (KeepCopy(save=saves[-1]) if copied else None)


def test_an_answer_is_recorded_and_remembered() -> None:
    """A failure too, and then it is left alone for a while."""
    good = m.KeepAnswer(path="/o/a.pt", copy="/r/a.pt", format="torch", step=3, saved_at=5.0)
    told = decided(b.running(), kept=good)
    assert told.consumes == ("keep",)
    other = b.running(*told.events, *decided(
        b.running(), kept=replace(good, path="/o/b.pt", copy="/r/b.pt")
    ).events)  # fmt: skip
    assert [one.copy for one in other.kept] == ["/r/a.pt", "/r/b.pt"]
    state = b.running(*told.events)
    bad = replace(good, problem="too little space is free for a copy")
    (event,) = decided(state, kept=bad).events
    assert isinstance(event, e.CheckpointNotKept)
    state = b.running(*told.events, event)
    assert [one.copy for one in state.kept] == ["/r/a.pt"], "the older copy stays"
    assert decided(state, save(at=9), at=300.0) is None
    assert decided(state, save(at=9), at=700.0) is not None


def copied(tmp_path: Path, record: m.SaveRecord, earlier: m.KeptCopy | None = None) -> m.KeepAnswer:
    copy = tmp_path / "run" / "kept" / "x" / os.path.basename(record.path)
    request = KeepRequest(save=record, copy=str(copy), out="", most_bytes=10**6, earlier=earlier)
    return keep(request)


def surveyed(
    path: Path, record: m.SaveRecord, answer: m.KeepAnswer
) -> list[tuple[str, bool | None]]:
    one = msgspec.convert(answer, m.KeptCopy, from_attributes=True)
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
    record = noted(path, step=7)
    answer = copied(tmp_path, record)
    assert answer.problem is None
    assert Path(answer.copy).read_bytes() == content
    assert surveyed(path, record, answer) == [(str(path), True)]
    path.write_bytes(content[: len(content) // 2])
    torn, copy = surveyed(path, record, answer)
    assert torn[1] is not True
    assert copy == (answer.copy, True)
    (tmp_path / "link").symlink_to(path.parent)  # the user may name the directory by a link
    assert surveyed(tmp_path / "link" / "ckpt.pt", record, answer)[1] == copy
    Path(answer.copy).unlink()
    assert surveyed(path, record, answer)[1] == (answer.copy, False)


def test_a_copy_stands_where_its_own_age_puts_it(tmp_path: Path) -> None:
    """A best.pt that is torn hours after its copy was made must not take the run back to then."""
    best, last = tmp_path / "out" / "best.pt", tmp_path / "out" / "last.pt"
    best.parent.mkdir()
    for number, path in enumerate((best, last)):
        path.write_bytes(checkpoint(epoch=3 + number))
        os.utime(path, (1000 + 3600 * number,) * 2)
    record = noted(best, step=7)
    answer = copied(tmp_path, record)
    best.write_bytes(best.read_bytes()[:50])
    found = [path for path, _ in surveyed(best, record, answer)]
    assert found == [str(best), str(last), answer.copy]
    last.write_bytes(torch_zip())  # weights alone
    os.utime(last, (4600, 4600))
    assert [path for path, _ in surveyed(best, record, answer)][1:] == [answer.copy, str(last)]


@pytest.mark.parametrize("late", [False, True], ids=["before it", "during it"])
def test_what_has_changed_since_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """A copy of the next save in the middle is worth nothing; the older one stays."""
    path = tmp_path / "ckpt.pt"
    whole = torch_zip()  # once: its parts have the time in them
    path.write_bytes(whole)
    record = noted(path, step=7)
    answer = copied(tmp_path, record)
    if late:  # as large as before
        monkeypatch.setattr(copies, "_reflinked", lambda *_: path.write_bytes(whole) < 0)
    else:
        path.write_bytes(whole[:50])
    again = copied(tmp_path, record)
    assert "the next save has begun" in again.problem
    assert Path(answer.copy).read_bytes() == whole
    assert sorted(os.listdir(Path(answer.copy).parent)) == ["ckpt.pt"]


def checkpoint(**content: Any) -> bytes:
    return torch_zip(pickle=pickle.dumps({"model": {"epoch": 9}, **content}, protocol=2))


def test_the_step_of_a_file_comes_from_the_file(tmp_path: Path) -> None:
    """The note is about what it held before somebody put another version there."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(checkpoint(step=70_000, epoch=3))
    assert counters(str(path)) == {"step": 70_000, "epoch": 3}
    record = noted(path, step=7)
    path.write_bytes(checkpoint(global_step=50))
    (found,) = look(tmp_path, saves=(record,))
    assert (found.step, found.counters) == (50, {"global_step": 50})
    path.write_bytes(checkpoint()[:-40])
    assert counters(str(path)) == {}


def test_a_count_that_falls_within_an_attempt_proves_nothing(tmp_path: Path) -> None:
    """A script that counts anew for each fold, into the same file, may do so after a restart."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(checkpoint(step=20))
    first = noted(path, step=7, counters={"step": 90}, attempt=1, t=1.0)
    for attempt, known in ((1, {}), (2, {"step": 20})):
        second = replace(first, counters={"step": 20}, attempt=attempt, t=2.0)
        (found,) = look(tmp_path, saves=(first, second))
        assert found.counters == known


@pytest.mark.parametrize(
    ("content", "noted_step", "replaced"),
    [
        ({"step": 40}, 900, False),
        ({"step": 60}, 3, True),  # by its own count, whatever the hooks have counted
        ({"epoch": 2, "step": 10}, 3, True),  # counted per epoch
        ({}, 3, False),
        ({}, 60, True),
    ],
)
def test_a_kept_copy_gives_way_to_no_lower_step(
    content: dict[str, int], noted_step: int, replaced: bool, tmp_path: Path
) -> None:
    """Of a later attempt, which may not have resumed."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(checkpoint(epoch=1, step=50) if content else torch_zip())
    assert copied(tmp_path, noted(path, step=7)).step == (50 if content else 7)
    path.write_bytes(checkpoint(**content) if content else torch_zip(b"new"))
    record = noted(path, step=noted_step)
    earlier = m.KeptCopy(path="", copy="", format="torch", step=50, saved_at=0.0, attempt=1)
    answer = copied(tmp_path, record, earlier)
    assert (answer.problem is None) is replaced, answer.problem
    assert (Path(answer.copy).read_bytes() == path.read_bytes()) is replaced


def planned(path: str, *events: e.AnyEvent, **changes: Any) -> State:
    """Between two attempts: the next one resumes from this file."""
    used = m.CheckpointRef(path=path, format="torch", step=9, how_checked="recorded", saved_at=5.0)
    plan = replace(b.plan(2), checkpoint=replace(used, **changes), resume_via="env")
    return b.running(b.exited(1), e.TreeGone(), e.PlanMade(plan=plan), *events, at=50.0)


def before_launch(state: State, **seen: Any) -> Any:
    policy = Policy(recovery=Recovery(**seen.pop("recovery", {})))
    observation = b.observation(b.sample(100.0, keeper_alive=False, empty_looks=2), **seen)
    return decide(observation, state, policy, {})


def test_what_a_restart_may_write_over_is_kept_before_it_starts() -> None:
    """Once; a copy that there is, or that cannot be made, keeps nobody waiting."""
    action = before_launch(planned("/out/ckpt.pt"))
    assert (action.save.path, action.save.files) == ("/out/ckpt.pt", {})
    assert isinstance(before_launch(planned("/out/ckpt.pt"), running=frozenset({"keep"})), Wait)
    failed = e.CheckpointNotKept(path="/out/ckpt.pt", why=m.said("full"))
    for state in (
        planned("/out/ckpt.pt", failed),
        planned("/out/ckpt", format="hf"),
        planned("/run/kept/ckpt.pt", copy_of="/out/ckpt.pt"),
        replace(planned("/out/ckpt.pt"), kept=kept(5.0, 1.0).kept),
    ):
        assert isinstance(before_launch(state), Launch)
    assert isinstance(before_launch(planned("/o/c.pt"), recovery={"keep_bytes": 0}), Launch)
    assert isinstance(before_launch(planned("/out/step-9.pt")), KeepCopy), "numbers come again"
    assert keeping.unkept(planned("/out/step-9.pt", failed), planned("/out/step-9.pt").next_plan)
    older = replace(planned("/out/ckpt.pt"), kept=kept(4.0, 1.0).kept)
    assert isinstance(before_launch(older), KeepCopy)
    changed = e.CheckpointKept(
        path="/out/ckpt.pt", copy="/r/c.pt", format="torch", step=1, saved_at=9.0,
        how="copy", seconds=0.1,
    )  # fmt: skip
    assert isinstance(before_launch(planned("/out/ckpt.pt", changed)), Launch)


def test_copies_are_kept_on_after_a_reboot() -> None:
    """The monotonic clock begins anew: the newest copy would seem to be of days ahead."""
    before = replace(kept(5.0, 1e6), keep_failed=True, boot_id="before")
    for event in (
        e.Adopted(pid=1, start=1, boot_id="after", previous_pid=1, why=m.said(""), mono=50.0),
        e.Reopened(pid=1, start=1, boot_id="after", slot_dir=None, with_remedies=(), allow=(),
                   why=m.said(""), mono=50.0),
    ):  # fmt: skip
        state = evolve(before, event)
        state = replace(state, attempts=before.attempts)
        assert decided(state, save(at=9), at=900.0) is not None


def torn_and_kept(whole: bool | None = False) -> m.Survey:
    torn = m.CheckpointFinding(
        path="/out/c.pt", format="torch", step=None, whole=whole, said="cut", how_checked="quick",
        saved_at=1e9 + 60.0,
    )  # fmt: skip
    copy = replace(torn, path="/r/c.pt", step=5, whole=True, copy_of="/out/c.pt")
    return m.Survey(findings=(torn, copy), directories=("/out",))


def test_a_kept_copy_is_put_back_where_only_its_own_path_reaches_the_script() -> None:
    """And the checkpoints are scanned again; where it is not allowed, the line for it is said."""
    state = b.running(b.exited(1), e.TreeGone(), at=50.0)
    action = before_launch(state, survey=torn_and_kept())
    assert action == RestoreCopy(path="/out/c.pt", saved_at=1e9 + 60.0, copy="/r/c.pt")
    newer = replace(torn_and_kept().findings[1], path="/out/x.pt", copy_of=None)
    beside = m.Survey(findings=(newer, *torn_and_kept().findings), directories=("/out",))
    assert before_launch(state, survey=beside) == action, "it may open its own path nevertheless"
    busy = before_launch(state, survey=torn_and_kept(), running=frozenset({"restore"}))
    assert isinstance(busy, Wait)
    done = m.RestoreAnswer(path="/out/c.pt", copy="/r/c.pt", aside="/out/c.pt.torn-1")
    record = before_launch(state, survey=torn_and_kept(), restored=done)
    assert record.consumes == ("restore", "survey")
    after = b.running(b.exited(1), e.TreeGone(), *record.events, at=50.0)
    assert isinstance(before_launch(after), StartSurvey)
    again = before_launch(after, survey=torn_and_kept())
    assert [event.plan.resume_via for event in again.events if isinstance(event, e.PlanMade)]
    told = before_launch(state, survey=torn_and_kept(whole=None))
    (plan,) = [event.plan for event in told.events if isinstance(event, e.PlanMade)]
    assert "cp /r/c.pt /out/c.pt" in why_text(plan.why)
    passed = before_launch(
        state, survey=torn_and_kept(), recovery={"resume_arg": "--resume {checkpoint}"}
    )
    assert isinstance(passed, Record), "the script is given the copy itself"


def test_a_torn_file_is_moved_aside_for_its_copy(tmp_path: Path) -> None:
    """Nothing is deleted, and a file that was written since is left alone."""
    path, copy = tmp_path / "c.pt", tmp_path / "kept.pt"
    copy.write_bytes(torch_zip())
    path.write_bytes(b"torn")
    path.chmod(0o640)
    (tmp_path / "c.pt.torn-1").write_bytes(b"older")
    asked = RestoreRequest(
        path=str(path), saved_at=path.stat().st_mtime_ns / 1e9, copy=str(copy), out=""
    )
    late = restore(replace(asked, saved_at=1.0))
    assert "written since" in (late.problem or "")
    assert path.read_bytes() == b"torn"
    gone = restore(replace(asked, copy=str(tmp_path / "none")))
    assert gone.problem
    assert path.read_bytes() == b"torn"
    answer = restore(asked)
    assert answer.problem is None
    assert path.read_bytes() == copy.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o640
    assert Path(answer.aside or "").read_bytes() == b"torn"
    assert sorted(os.listdir(tmp_path)) == ["c.pt", "c.pt.torn-1", "c.pt.torn-2", "kept.pt"]
