"""The order of the promises: what comes next in situations that have gone wrong before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Action,
    AskSave,
    AskStop,
    CleanUp,
    Launch,
    LaunchReport,
    Record,
    Request,
    Signal,
    StartEvidence,
    StartSurvey,
    Wait,
)
from watchdog_train.core.decide import decide
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    CheckpointFinding,
    ExitStatus,
    MemberSample,
    Patience,
    ProcessId,
    SaveRecord,
    Survey,
    said,
)
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.report.why_text import why_text

POLICY = Policy()
OBSERVE = Policy(recovery=Recovery(observe=True))
HUNG = (b.stall(), b.collecting(), b.collected())
QUIET = Verdict(kind="suspect", why=said("quiet"))
KNOWN = (
    e.FirstBeat(rank=0, pid=b.ROOT, after_s=0.5),
    e.FirstStep(rank=0, pid=b.ROOT, step=2, after_s=1.0),
)
GONE: dict[str, Any] = {"members": (), "keeper_alive": False, "empty_looks": 2}
EVIDENCE: Any = frozenset({"evidence"})
SURVEY: Any = frozenset({"survey"})


def act(
    state: State,
    *,
    at: float = 0.0,
    policy: Policy = POLICY,
    members: tuple[MemberSample, ...] = (b.rank(words=2),),
    keeper_alive: bool | None = True,
    empty_looks: int = 0,
    **seen: Any,
) -> Action:
    poll = b.sample(at, *members, keeper_alive=keeper_alive, empty_looks=empty_looks)
    action = decide(b.observation(poll, **seen), state, policy, {})
    match action:
        case Record(events=(e.Progress() as census,)):  # sampled, and no decision
            state = evolve(state, msgspec.structs.replace(census, mono=at))
            return decide(b.observation(poll, **seen), state, policy, {})
    return action


def run(*history: e.AnyEvent, at: float = 0.0) -> State:
    """An attempt whose firsts are known already."""
    return b.running(*KNOWN, *history, at=at)


def kinds(action: Action) -> list[str]:
    assert isinstance(action, Record), action
    return [type(event).__name__ for event in action.events]


def request(kind: Any) -> Request:
    return Request(kind=kind, by=kind)


# Launching -----------------------------------------------------------------------------------


def test_a_run_begins_with_a_plan() -> None:
    """First the intent, then the launch."""
    state = b.fold((b.RUN_STARTED,))
    assert kinds(act(state)) == ["PlanMade"]
    assert isinstance(act(b.fold((b.RUN_STARTED, e.PlanMade(plan=b.plan())))), Launch)


STARTING = b.fold((b.RUN_STARTED, e.AttemptLaunching(token="t", plan=b.plan())))


def test_a_keeper_has_half_a_minute() -> None:
    """Then it is ended with whatever it has started, and the next attempt is made."""
    assert isinstance(act(STARTING, at=29.9, members=()), Wait)
    action = act(STARTING, at=30.0, members=())
    silent = action.events[0]
    assert silent.how_known == "gone"
    history = (b.RUN_STARTED, e.AttemptLaunching(token="t", plan=b.plan()), silent)
    keeper = b.member(9, "keeper")
    assert isinstance(act(b.fold(history), members=(keeper,)), Wait)
    left = act(b.fold(history), members=(keeper, b.member(10)))
    assert left.targets == (b.member(10).member.identity,)
    sweep = e.Signalling(sequence="sweep", stage="keeper", targets=(), signal=0, why=said(""))
    late = act(b.fold((*history, sweep)), at=60.0, members=(keeper,), empty_looks=2)
    assert (late.targets, late.signal) == ((keeper.member.identity,), 9)
    assert isinstance(act(b.fold(history), at=30.0, **GONE), CleanUp)
    assert isinstance(act(b.fold((*history, e.TreeGone())), members=()), StartSurvey)


def test_a_keeper_that_ended_before_the_start_is_replaced() -> None:
    """The same plan is launched again after a moment, without a restart; five times at most."""
    lost = LaunchReport(root=None, keeper=ProcessId(9, 1009), lost=True)
    state = STARTING
    for _ in range(4):
        action = act(state, members=(), launch=lost)
        assert kinds(action) == ["LaunchPostponed"]
        state = evolve(state, action.events[0])
        assert (state.attempt, state.restarts) == (None, 0)
        assert isinstance(act(state, at=0.5, members=()), Wait)
        assert isinstance(act(state, at=1.0, members=()), Launch)
        state = evolve(state, e.AttemptLaunching(token="t", plan=b.plan()))
    action = act(state, members=(), launch=lost)
    assert action.events[0].how_known == "not-started"
    assert "(pid 9) ended before" in why_text(action.events[0].error)


def test_a_launch_that_its_supervisor_did_not_live_to_make_is_made_again() -> None:
    """The intent is open, nothing is there, and the command is not to blame."""
    launching = e.AttemptLaunching(token="t", plan=b.plan())
    adopted = e.Adopted(pid=2, start=2, boot_id="b", previous_pid=1, why=said("gone"))
    history = (b.RUN_STARTED, launching, adopted)
    action = act(b.fold(history), at=30.0, members=())
    exited = action.events[0]
    assert exited.how_known == "gone"
    ended = b.fold((*history, exited))
    assert isinstance(act(ended, members=(), keeper_alive=None), Wait)
    assert isinstance(act(ended, members=(), keeper_alive=None, empty_looks=2), CleanUp)
    ended = b.fold((*history, exited, e.TreeGone()))
    assert isinstance(act(ended, members=()), StartSurvey)


def test_what_could_not_be_started_is_over_at_once() -> None:
    """Nobody looks at a tree that never was: no look is waited for, and nothing is tried again."""
    report = LaunchReport(root=None, keeper=ProcessId(9, 1009), error=said("no such file"))
    assert kinds(act(STARTING, members=(), launch=report)) == ["AttemptExited"]
    error = b.exited(None, None, "not-started", error=said("no such file"))
    launching = e.AttemptLaunching(token="t", plan=b.plan())
    ended = (b.RUN_STARTED, launching, error)
    assert isinstance(act(b.fold(ended), members=(), keeper_alive=None), CleanUp)
    assert kinds(act(b.fold((*ended, e.TreeGone())), members=())) == ["RunFinished"]


@pytest.mark.parametrize(
    "history",
    [
        (),
        (b.exited(3), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone()),
        (
            b.exited(3),
            e.TreeGone(),
            e.BackingOff(delay_s=9.0, until_mono=9.0, why=said("")),
            e.PlanMade(plan=b.plan(2)),
        ),
    ],
    ids=["before the first attempt", "while checkpoints are surveyed", "in backoff"],
)
def test_after_a_stop_nothing_is_launched(history: tuple[e.AnyEvent, ...]) -> None:
    """A stop between attempts ends the run at once."""
    state = run(*history, b.stop()) if history else b.fold((b.RUN_STARTED, b.stop()))
    action = act(state, at=20.0, running=SURVEY)
    if not history:
        action = act(state, members=())
    assert kinds(action) == ["RunFinished"]


def test_a_stop_while_starting_waits_for_the_start() -> None:
    """What is being started can only be stopped when it is known."""
    launching = e.AttemptLaunching(token="t", plan=b.plan())
    state = b.fold((b.RUN_STARTED, launching, b.stop()))
    assert isinstance(act(state, members=()), Wait)
    assert isinstance(act(run(b.stop())), Signal)


# Evidence ------------------------------------------------------------------------------------


def test_evidence_comes_before_the_first_signal() -> None:
    """Declared, collected, and only then signalled."""
    assert isinstance(act(run(b.stall()), verdict=QUIET), StartEvidence)
    assert isinstance(act(run(b.stall(), b.collecting()), running=EVIDENCE), Wait)
    assert kinds(act(run(b.stall(), b.collecting()), evidence=b.result())) == [
        "EvidenceCollected",
        "StallExplained",
    ]
    action = act(run(*HUNG))
    assert (action.sequence, action.signal) == ("hang", 15)


def test_one_collection_at_a_time() -> None:
    """A manual dump under way is waited for, then the stall has its own."""
    manual = b.collecting("0001", "manual")
    stalled = run(manual, b.stall("0002"))
    assert stalled.state == "collecting"
    assert isinstance(act(stalled, running=EVIDENCE), Wait)
    assert kinds(act(stalled, evidence=b.result("0001")))[0] == "EvidenceCollected"
    action = act(run(manual, b.stall("0002"), b.collected("0001", "manual")))
    assert action.stall_id == "0002"


def test_a_collection_that_an_adoption_lost_is_started_again() -> None:
    """The new supervisor has no task, and an open intent."""
    for why in ("stall", "manual", "crash"):
        action = act(run(b.collecting(why=why)))
        assert (action.stall_id, action.bundle_why) == ("0001", why)


RECOVERED = (b.stall(), b.collecting(), e.StallRecovered(stall_id="0001", why=said("")))


def test_the_answer_about_a_stall_that_recovered_confuses_nobody() -> None:
    """It is dropped, and a new stall waits for the old collector to end."""
    action = act(run(*RECOVERED), evidence=b.result("0001"))
    assert action == Record(events=(), consumes=("evidence",))
    again = run(*RECOVERED, b.stall("0002"))
    assert isinstance(act(again, running=EVIDENCE), Wait)
    assert isinstance(act(again, evidence=b.result("0001")), Record)
    assert isinstance(act(again), StartEvidence)


@pytest.mark.parametrize(
    "history",
    [
        (),
        (b.exited(0),),
        (e.Suspected(basis="hard-budget", phase="train", ranks=(), age_s=1.0, why=said("")),),
    ],
)
def test_an_old_look_is_not_believed(history: tuple[e.AnyEvent, ...]) -> None:
    """Its silence is over; left lying it would prove the next one."""
    action = act(run(*history), look=b.result(patience=Patience(row="proven", limit_s=20.0)))
    assert action == Record(events=(), consumes=("look",))


def test_a_look_that_is_waited_for_is_kept() -> None:
    """It becomes an event."""
    suspected = e.Suspected(basis="quiet", phase="train", ranks=(0,), age_s=1.0, why=said(""))
    assert kinds(act(run(suspected), verdict=QUIET, look=b.result())) == ["Looked"]


def test_progress_cancels_a_stall_while_evidence_is_taken() -> None:
    """Nothing was killed, so it recovered."""
    verdict = Verdict(kind="alive", progress_at=5.0)
    state = run(b.stall(), b.collecting())
    assert kinds(act(state, at=6.0, running=EVIDENCE, verdict=verdict)) == ["StallRecovered"]


def test_a_collector_that_failed_does_not_stop_the_rescue() -> None:
    """Its failure is recorded, and that is all the evidence there is."""
    state = run(b.stall(), b.collecting())
    action = act(state, evidence=b.result(explanation=None, problem="py-spy is missing"))
    assert kinds(action) == ["EvidenceCollected"]


@pytest.mark.parametrize(
    ("history", "members", "running"),
    [
        ((b.stall(), b.collecting()), (b.rank(words=2),), EVIDENCE),
        ((b.collecting(why="manual"),), (b.rank(words=2),), EVIDENCE),
        ((b.exited(0), e.TreeGone()), (), frozenset()),
        (RECOVERED, (b.rank(words=2),), EVIDENCE),
    ],
    ids=["of a stall", "of a dump", "of nobody", "of a stall that recovered"],
)
def test_a_dump_that_another_answers_starts_nothing(
    history: tuple[e.AnyEvent, ...], members: tuple[MemberSample, ...], running: Any
) -> None:
    """One bundle at a time, and none of nobody."""
    action = act(run(*history), members=members, running=running, request=request("dump"))
    assert action == Record(events=())


def test_a_dump_on_request() -> None:
    """A bundle that nothing else depends on."""
    action = act(run(), request=request("dump"))
    assert action.bundle_why == "manual"
    assert run(b.collecting(why="manual")).state == "running"


# The end of an attempt -----------------------------------------------------------------------


def test_a_root_that_exits_0_during_collection_has_recovered() -> None:
    """It finished before anything was killed."""
    status = ExitStatus(code=0, signal=None, how_known="keeper-file")
    action = act(run(b.stall(), b.collecting()), running=EVIDENCE, exit=status)
    assert kinds(action) == ["Progress", "StallRecovered", "AttemptExited"]


def test_a_root_that_exits_0_when_it_is_killed_has_not() -> None:
    """Exit 0 on SIGTERM is no success."""
    status = ExitStatus(code=0, signal=None, how_known="keeper-file")
    term = e.Signalling(
        sequence="hang",
        stage="terminate",
        targets=(ProcessId(b.ROOT, b.ROOT + 1000),),
        signal=15,
        why=said("hung"),
    )
    assert kinds(act(run(*HUNG, term), exit=status)) == ["Progress", "AttemptExited"]
    gone = run(*HUNG, term, b.exited(0), e.TreeGone())
    assert isinstance(act(gone, **GONE), StartSurvey)


def test_a_bad_end_of_its_own_after_the_training_is_a_failure() -> None:
    """Only what we have ended may pass as finished."""
    status = ExitStatus(code=1, signal=None, how_known="keeper-file")
    action = act(run(b.stall(basis="finishing")), exit=status)
    assert kinds(action) == ["Progress", "StallRecovered", "AttemptExited"]


def test_a_root_that_ends_before_the_collection_leaves_evidence_first() -> None:
    """What outlived it is dumped before it is swept away."""
    state = run(b.stall(), b.exited(1))
    left = (b.member(11, "worker"),)
    action = act(state, members=left)
    assert action.bundle_why == "stall"
    state = run(b.stall(), b.exited(1), b.collecting(), b.collected())
    assert isinstance(act(state, members=left), Signal)


def test_a_crash_is_documented_before_the_rest_is_swept() -> None:
    """Exit evidence and log tail, then SIGTERM to what is left."""
    action = act(run(b.exited(3)), members=(b.member(11, "worker"),))
    assert action.bundle_why == "crash"
    state = run(b.exited(3), b.collecting(why="crash"), b.collected(why="crash"))
    action = act(state, members=(b.member(11, "worker"),))
    assert (action.sequence, action.signal) == ("sweep", 15)
    assert isinstance(act(state, **GONE), CleanUp)


@pytest.mark.parametrize(("at", "expected"), [(29.0, Wait), (31.0, Signal)])
def test_an_uploader_may_outlive_a_success(at: float, expected: type[Action]) -> None:
    """For half a minute."""
    assert isinstance(act(run(b.exited(0)), at=at, members=(b.member(11),)), expected)


def test_a_stop_does_not_wait_for_an_uploader() -> None:
    """Whoever stops wants an end."""
    assert isinstance(act(run(b.exited(0), b.stop()), members=(b.member(11),)), Signal)


def test_nothing_is_planned_while_somebody_lives() -> None:
    """The scan of checkpoints begins with the keeper alive; the plan waits for its end."""
    crashed = run(b.exited(3), b.collecting(why="crash"), b.collected(why="crash"))
    assert isinstance(act(crashed, members=(b.member(11),)), Signal)
    empty: dict[str, Any] = {"members": (), "keeper_alive": True, "empty_looks": 2}
    assert isinstance(act(crashed, **empty), StartSurvey)
    found = Survey(findings=(), directories=("/out",))
    assert isinstance(act(crashed, survey=found, **empty), Wait)
    gone = run(b.exited(3), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
    assert isinstance(act(gone, **GONE), StartSurvey)


def test_what_survived_sigkill_ends_the_run() -> None:
    """Nothing is started over it."""
    action = act(run(*HUNG, e.SurvivedKill(pids=(b.ROOT,), why=said("D"))))
    finished = action.events[0]
    assert finished.exit_code == 75
    assert str(b.ROOT) in why_text(finished.warning)


CRASH = (b.exited(3), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
NOTHING_SAVED = Survey(findings=(), directories=("/out",))


def crashed_twice() -> State:
    second = b.plan(2)
    launched = e.AttemptLaunched(
        pid=b.ROOT, start=b.ROOT + 1000, keeper_pid=b.KEEPER, keeper_start=b.KEEPER + 1000
    )
    again = (e.PlanMade(plan=second), e.AttemptLaunching(token="u", plan=second), launched)
    return run(*CRASH, *again, *CRASH)


def test_a_first_restart_waits_for_nothing() -> None:
    assert kinds(act(run(*CRASH), survey=NOTHING_SAVED, **GONE)) == ["PlanMade"]


def test_a_backoff_is_on_disk_before_its_plan() -> None:
    """Between the two lines a supervisor may die: the next must not launch at once."""
    told = kinds(act(crashed_twice(), survey=NOTHING_SAVED, **GONE))
    assert told == ["BackingOff", "PlanMade"]


@pytest.mark.parametrize(("at", "left_s"), [(0.5, 1.5), (9.0, None)])
def test_a_backoff_is_counted_from_the_crash(at: float, left_s: float | None) -> None:
    """Evidence and scan are a part of the wait."""
    action = act(crashed_twice(), at=at, survey=NOTHING_SAVED, **GONE)
    assert isinstance(action, Record)
    told = [each for each in action.events if isinstance(each, e.BackingOff)]
    assert [(each.delay_s, each.until_mono) for each in told] == ([(left_s, 2.0)] if left_s else [])


def test_checkpoints_are_scanned_beside_the_evidence() -> None:
    """As soon as two looks agree that nobody is left to write one."""
    crashed = run(b.exited(3), b.collecting(why="crash"))
    left = (b.member(11),)
    assert isinstance(act(crashed, running=EVIDENCE, members=left), Wait)
    assert isinstance(act(crashed, running=EVIDENCE, members=(), empty_looks=1), Wait)
    assert isinstance(act(crashed, running=EVIDENCE, members=(), empty_looks=2), StartSurvey)
    both = EVIDENCE | SURVEY
    assert isinstance(act(crashed, running=both, members=(), empty_looks=2), Wait)
    found = Survey(findings=(), directories=("/out",))
    assert isinstance(act(crashed, running=EVIDENCE, survey=found, members=(), empty_looks=2), Wait)
    stale = act(crashed, running=EVIDENCE, survey=found, members=left)
    assert isinstance(stale, Record), "somebody was born, and may have written"
    assert stale.consumes == ("survey",)
    for over in ((b.exited(0),), (b.exited(3), b.stop())):
        assert not isinstance(act(run(*over), members=(), empty_looks=2), StartSurvey)


@pytest.mark.parametrize(("at", "expected"), [(8.9, Wait), (9.0, Launch)])
def test_a_backoff_is_kept(at: float, expected: type[Action]) -> None:
    """Restarts are spaced as the plan says."""
    backing = e.BackingOff(delay_s=9.0, until_mono=9.0, why=said(""))
    state = run(b.exited(3), e.TreeGone(), backing, e.PlanMade(plan=b.plan(2)))
    assert isinstance(act(state, at=at, **GONE), expected)


# Stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "before", "mode", "code"),
    [
        ("stop", (), "soft", 77),
        ("stop_now", (), "now", 77),
        ("interrupt", (), "soft", 130),
        ("interrupt", (b.stop(code=130),), "now", 130),
        ("stop", (b.stop(),), "now", 77),
    ],
)
def test_requests_to_stop(kind: Any, before: tuple[e.AnyEvent, ...], mode: str, code: int) -> None:
    """A second request of any kind does not wait."""
    action = act(run(*before), request=request(kind))
    event = action.events[0]
    assert (event.mode, event.exit_code) == (mode, code)


def test_who_can_be_asked_is_asked() -> None:
    """Else the root gets the word."""
    assert isinstance(act(run(b.stop()), members=(b.rank(words=2, can_stop=True),)), AskStop)
    action = act(run(b.stop()))
    assert (action.stage, action.signal) == ("root", 15)


@pytest.mark.parametrize(
    ("history", "running"),
    [
        ((b.stall(), b.collecting()), EVIDENCE),
        ((b.collecting(why="manual"),), EVIDENCE),
    ],
)
def test_a_soft_stop_waits_for_the_dumps(history: tuple[e.AnyEvent, ...], running: Any) -> None:
    """They are on disk before the first signal; a hard stop does not wait."""
    assert isinstance(act(run(*history, b.stop()), running=running), Wait)
    action = act(run(*history, b.stop("now")), running=running)
    assert action.sequence == "now"


def test_a_soft_stop_after_the_dumps_is_a_stop() -> None:
    """Not a hang: the root may still save."""
    assert isinstance(act(run(b.stall(), b.stop())), StartEvidence)
    action = act(run(*HUNG, b.stop()))
    assert action.sequence == "stop"


# Observing -----------------------------------------------------------------------------------


def test_observing_reports_and_signals_nobody() -> None:
    """Dumped, reported, left alone; also what outlives its root."""
    assert isinstance(act(run(b.stall()), policy=OBSERVE), StartEvidence)
    assert kinds(act(run(*HUNG), policy=OBSERVE)) == ["WouldHaveKilled"]
    left = (b.member(11),)
    state = run(b.exited(0))
    assert isinstance(act(state, at=29.0, policy=OBSERVE, members=left), Wait)
    assert kinds(act(state, at=31.0, policy=OBSERVE, members=left)) == ["RunFinished"]


def test_observing_ends_when_the_user_stops() -> None:
    """Then everything goes, what was left behind included."""
    assert isinstance(act(run(b.stop()), policy=OBSERVE), Signal)
    state = run(b.exited(0), b.stop())
    assert isinstance(act(state, policy=OBSERVE, members=(b.member(11),)), Signal)


# Saves ---------------------------------------------------------------------------------------

ASKED = e.SaveRequested(by="wtrain save", sequence=1, can_be_asked=True)
SAVED = SaveRecord(format="hf", path="/out/5", step=5, t=1e9 + 1.0)


def survey(*, whole: bool) -> Survey:
    finding = CheckpointFinding(
        path="/out/5", format="hf", step=5, whole=whole, said="", how_checked="recorded"
    )
    return Survey(findings=(finding,), directories=("/out",))


def test_a_save_is_proven_by_a_whole_checkpoint() -> None:
    """Asked to save is not saved."""
    assert isinstance(act(run(), request=request("save")), AskSave)
    state = run(ASKED)
    assert isinstance(act(state, at=2.0), Wait)
    assert isinstance(act(state, at=2.0, last_save=SAVED), StartSurvey)
    proven = act(state, at=4.0, last_save=SAVED, survey=survey(whole=True))
    assert kinds(proven) == ["SaveProven"]
    partial = act(state, at=4.0, last_save=SAVED, survey=survey(whole=False))
    assert partial == Record(events=(), consumes=("survey",))


def test_a_partial_save_is_not_surveyed_for_ever() -> None:
    """Looks cost CPU time that is the training's."""
    assert isinstance(act(run(ASKED), at=70.0, last_save=SAVED), Wait)


@pytest.mark.parametrize("whole", [True, False])
def test_an_unproven_save_does_not_keep_the_run_from_going_on(whole: bool) -> None:
    """After the end the survey belongs to the next plan."""
    crash = (b.exited(3), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
    action = act(run(ASKED, *crash), at=9.0, last_save=SAVED, survey=survey(whole=whole), **GONE)
    if whole:
        assert kinds(action) == ["SaveProven"]
        assert action.consumes == ()
    else:
        assert "PlanMade" in kinds(action)


def test_a_survey_from_before_the_end_is_dropped() -> None:
    """It may have missed the newest checkpoint."""
    state = run(b.exited(3), b.collecting(why="crash"))
    action = act(state, running=EVIDENCE, survey=survey(whole=True))
    assert action == Record(events=(), consumes=("survey",))
