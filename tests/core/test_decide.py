"""The order of the promises: what comes next in situations that have gone wrong before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.decide import decide
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.report.why_text import why_text

POLICY = Policy()
OBSERVE = Policy(recovery=Recovery(observe=True))
HUNG = (b.stall(), b.collecting(), b.collected())
QUIET = Verdict(kind="suspect", why=m.said("quiet"))
KNOWN = (
    e.FirstBeat(rank=0, pid=b.ROOT, after_s=0.5),
    e.FirstStep(rank=0, pid=b.ROOT, step=2, after_s=1.0),
)
GONE: dict[str, Any] = {"members": (), "keeper_alive": False, "empty_looks": 2}
EVIDENCE: Any = frozenset({"evidence"})
SURVEY: Any = frozenset({"survey"})
LAUNCHING = e.AttemptLaunching(token="t", plan=b.plan())
CRASH = (b.exited(3), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
NOTHING_SAVED = m.Survey(findings=(), directories=("/out",))


def then(seen: a.Observation, state: State, policy: Policy = POLICY) -> Any:
    """The next action that is no mere sample."""
    action = decide(seen, state, policy, {})
    match action:
        case a.Record(events=(e.Progress() as census,)):
            state = evolve(state, msgspec.structs.replace(census, mono=seen.now))
            return decide(seen, state, policy, {})
    return action


def act(
    state: State,
    *,
    at: float = 0.0,
    policy: Policy = POLICY,
    members: tuple[m.MemberSample, ...] = (b.rank(words=2),),
    keeper_alive: bool | None = True,
    empty_looks: int = 0,
    **seen: Any,
) -> a.Action:
    poll = b.sample(at, *members, keeper_alive=keeper_alive, empty_looks=empty_looks)
    return then(b.observation(poll, **seen), state, policy)


def run(*history: e.AnyEvent, at: float = 0.0) -> State:
    """An attempt whose firsts are known already."""
    return b.running(*KNOWN, *history, at=at)


def kinds(action: a.Action) -> list[str]:
    assert isinstance(action, a.Record), action
    return [type(event).__name__ for event in action.events]


def request(kind: Any) -> a.Request:
    return a.Request(kind=kind, by=kind)


# Launching -----------------------------------------------------------------------------------


def test_a_run_begins_with_a_plan() -> None:
    state = b.fold((b.RUN_STARTED,))
    assert kinds(act(state)) == ["PlanMade"]
    assert isinstance(act(b.fold((b.RUN_STARTED, e.PlanMade(plan=b.plan())))), a.Launch)


STARTING = b.fold((b.RUN_STARTED, LAUNCHING))


def test_a_keeper_has_half_a_minute() -> None:
    """Then it is ended with whatever it has started, and the next attempt is made."""
    assert isinstance(act(STARTING, at=29.9, members=()), a.Wait)
    action = act(STARTING, at=30.0, members=())
    silent = action.events[0]
    assert silent.how_known == "gone"
    history = (b.RUN_STARTED, LAUNCHING, silent)
    keeper = b.member(9, "keeper")
    assert isinstance(act(b.fold(history), members=(keeper,)), a.Wait)
    left = act(b.fold(history), members=(keeper, b.member(10)))
    assert left.targets == (b.member(10).member.identity,)
    sweep = e.Signalling(sequence="sweep", stage="keeper", targets=(), signal=0, why=m.said(""))
    late = act(b.fold((*history, sweep)), at=60.0, members=(keeper,), empty_looks=2)
    assert (late.targets, late.signal) == ((keeper.member.identity,), 9)
    assert isinstance(act(b.fold(history), at=30.0, **GONE), a.CleanUp)
    assert isinstance(act(b.fold((*history, e.TreeGone())), members=()), a.StartSurvey)


def test_a_keeper_that_ended_before_the_start_is_replaced() -> None:
    """The same plan is launched again after a moment, without a restart; five times at most."""
    lost = a.LaunchReport(root=None, keeper=m.ProcessId(9, 1009), lost=True)
    state = STARTING
    for _ in range(4):
        action = act(state, members=(), launch=lost)
        assert kinds(action) == ["LaunchPostponed"]
        state = evolve(state, action.events[0])
        assert (state.attempt, state.restarts) == (None, 0)
        assert isinstance(act(state, at=0.5, members=()), a.Wait)
        assert isinstance(act(state, at=1.0, members=()), a.Launch)
        state = evolve(state, LAUNCHING)
    action = act(state, members=(), launch=lost)
    assert action.events[0].how_known == "not-started"
    assert "(pid 9) ended before" in why_text(action.events[0].error)


def test_a_launch_that_its_supervisor_did_not_live_to_make_is_made_again() -> None:
    """The intent is open, nothing is there, and the command is not to blame."""
    adopted = e.Adopted(pid=2, start=2, boot_id="b", previous_pid=1, why=m.said("gone"))
    history = (b.RUN_STARTED, LAUNCHING, adopted)
    action = act(b.fold(history), at=30.0, members=())
    exited = action.events[0]
    assert exited.how_known == "gone"
    ended = b.fold((*history, exited))
    assert isinstance(act(ended, members=(), keeper_alive=None), a.Wait)
    assert isinstance(act(ended, members=(), keeper_alive=None, empty_looks=2), a.CleanUp)
    ended = b.fold((*history, exited, e.TreeGone()))
    assert isinstance(act(ended, members=()), a.StartSurvey)


def test_what_could_not_be_started_is_over_at_once() -> None:
    """Nobody looks at a tree that never was: no look is waited for, and nothing is tried again."""
    report = a.LaunchReport(root=None, keeper=m.ProcessId(9, 1009), error=m.said("no such file"))
    assert kinds(act(STARTING, members=(), launch=report)) == ["AttemptExited"]
    error = b.exited(None, None, "not-started", error=m.said("no such file"))
    ended = (b.RUN_STARTED, LAUNCHING, error)
    assert isinstance(act(b.fold(ended), members=(), keeper_alive=None), a.CleanUp)
    assert kinds(act(b.fold((*ended, e.TreeGone())), members=())) == ["RunFinished"]


@pytest.mark.parametrize(
    "history",
    [
        (),
        CRASH,
        (
            b.exited(3),
            e.TreeGone(),
            e.BackingOff(delay_s=9.0, until_mono=9.0, why=m.said("")),
            e.PlanMade(plan=b.plan(2)),
        ),
    ],
    ids=["before the first attempt", "while checkpoints are surveyed", "in backoff"],
)
def test_after_a_stop_nothing_is_launched(history: tuple[e.AnyEvent, ...]) -> None:
    state = run(*history, b.stop()) if history else b.fold((b.RUN_STARTED, b.stop()))
    action = act(state, at=20.0, running=SURVEY)
    if not history:
        action = act(state, members=())
    assert kinds(action) == ["RunFinished"]


def test_a_stop_while_starting_waits_for_the_start() -> None:
    state = b.fold((b.RUN_STARTED, LAUNCHING, b.stop()))
    assert isinstance(act(state, members=()), a.Wait)
    assert isinstance(act(run(b.stop())), a.Signal)


# Evidence ------------------------------------------------------------------------------------


def test_evidence_comes_before_the_first_signal() -> None:
    assert isinstance(act(run(b.stall()), verdict=QUIET), a.StartEvidence)
    assert isinstance(act(run(b.stall(), b.collecting()), running=EVIDENCE), a.Wait)
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
    assert isinstance(act(stalled, running=EVIDENCE), a.Wait)
    assert kinds(act(stalled, evidence=b.result("0001")))[0] == "EvidenceCollected"
    action = act(run(manual, b.stall("0002"), b.collected("0001", "manual")))
    assert action.stall_id == "0002"


def test_a_collection_that_an_adoption_lost_is_started_again() -> None:
    """The new supervisor has no task, and an open intent."""
    for why in ("stall", "manual", "crash"):
        action = act(run(b.collecting(why=why)))
        assert (action.stall_id, action.bundle_why) == ("0001", why)


RECOVERED = (b.stall(), b.collecting(), e.StallRecovered(stall_id="0001", why=m.said("")))


def test_the_answer_about_a_stall_that_recovered_confuses_nobody() -> None:
    """It is dropped, and a new stall waits for the old collector to end."""
    action = act(run(*RECOVERED), evidence=b.result("0001"))
    assert action == a.Record(events=(), consumes=("evidence",))
    again = run(*RECOVERED, b.stall("0002"))
    assert isinstance(act(again, running=EVIDENCE), a.Wait)
    assert isinstance(act(again, evidence=b.result("0001")), a.Record)
    assert isinstance(act(again), a.StartEvidence)


@pytest.mark.parametrize(
    "history",
    [
        (),
        (b.exited(0),),
        (e.Suspected(basis="hard-budget", phase="train", ranks=(), age_s=1.0, why=m.said("")),),
    ],
)
def test_an_old_look_is_not_believed(history: tuple[e.AnyEvent, ...]) -> None:
    """Its silence is over; left lying it would prove the next one."""
    action = act(run(*history), look=b.result(patience=m.Patience(row="proven", limit_s=20.0)))
    assert action == a.Record(events=(), consumes=("look",))


def test_a_look_that_is_waited_for_is_kept() -> None:
    suspected = e.Suspected(basis="quiet", phase="train", ranks=(0,), age_s=1.0, why=m.said(""))
    assert kinds(act(run(suspected), verdict=QUIET, look=b.result())) == ["Looked"]


def test_progress_cancels_a_stall_while_evidence_is_taken() -> None:
    verdict = Verdict(kind="alive", progress_at=5.0)
    state = run(b.stall(), b.collecting())
    assert kinds(act(state, at=6.0, running=EVIDENCE, verdict=verdict)) == ["StallRecovered"]


def test_a_collector_that_failed_does_not_stop_the_rescue() -> None:
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
    history: tuple[e.AnyEvent, ...], members: tuple[m.MemberSample, ...], running: Any
) -> None:
    action = act(run(*history), members=members, running=running, request=request("dump"))
    assert action == a.Record(events=())


def test_a_dump_on_request() -> None:
    action = act(run(), request=request("dump"))
    assert action.bundle_why == "manual"
    assert run(b.collecting(why="manual")).state == "running"


# The end of an attempt -----------------------------------------------------------------------


def test_a_root_that_exits_0_during_collection_has_recovered() -> None:
    status = m.ExitStatus(code=0, signal=None, how_known="keeper-file")
    action = act(run(b.stall(), b.collecting()), running=EVIDENCE, exit=status)
    assert kinds(action) == ["Progress", "StallRecovered", "AttemptExited"]


def test_a_root_that_exits_0_when_it_is_killed_has_not() -> None:
    status = m.ExitStatus(code=0, signal=None, how_known="keeper-file")
    term = e.Signalling(
        sequence="hang",
        stage="terminate",
        targets=(m.ProcessId(b.ROOT, b.ROOT + 1000),),
        signal=15,
        why=m.said("hung"),
    )
    assert kinds(act(run(*HUNG, term), exit=status)) == ["Progress", "AttemptExited"]
    gone = run(*HUNG, term, b.exited(0), e.TreeGone())
    assert isinstance(act(gone, **GONE), a.StartSurvey)


def test_a_bad_end_of_its_own_after_the_training_is_a_failure() -> None:
    """Only what we have ended may pass as finished."""
    status = m.ExitStatus(code=1, signal=None, how_known="keeper-file")
    action = act(run(b.stall(basis="finishing")), exit=status)
    assert kinds(action) == ["Progress", "StallRecovered", "AttemptExited"]


def test_a_root_that_ends_before_the_collection_leaves_evidence_first() -> None:
    """What outlived it is dumped before it is swept away."""
    state = run(b.stall(), b.exited(1))
    left = (b.member(11, "worker"),)
    action = act(state, members=left)
    assert action.bundle_why == "stall"
    state = run(b.stall(), b.exited(1), b.collecting(), b.collected())
    assert isinstance(act(state, members=left), a.Signal)


def test_a_crash_is_documented_before_the_rest_is_swept() -> None:
    """Exit evidence and log tail, then SIGTERM to what is left."""
    action = act(run(b.exited(3)), members=(b.member(11, "worker"),))
    assert action.bundle_why == "crash"
    state = run(*CRASH[:3])
    action = act(state, members=(b.member(11, "worker"),))
    assert (action.sequence, action.signal) == ("sweep", 15)
    assert isinstance(act(state, **GONE), a.CleanUp)


@pytest.mark.parametrize(("at", "expected"), [(29.0, a.Wait), (31.0, a.Signal)])
def test_an_uploader_may_outlive_a_success(at: float, expected: type[a.Action]) -> None:
    assert isinstance(act(run(b.exited(0)), at=at, members=(b.member(11),)), expected)


def test_a_stop_does_not_wait_for_an_uploader() -> None:
    assert isinstance(act(run(b.exited(0), b.stop()), members=(b.member(11),)), a.Signal)


def test_nothing_is_planned_while_somebody_lives() -> None:
    """The scan of checkpoints begins with the keeper alive; the plan waits for its end."""
    crashed = run(*CRASH[:3])
    assert isinstance(act(crashed, members=(b.member(11),)), a.Signal)
    empty: dict[str, Any] = {"members": (), "keeper_alive": True, "empty_looks": 2}
    assert isinstance(act(crashed, **empty), a.StartSurvey)
    assert isinstance(act(crashed, survey=NOTHING_SAVED, **empty), a.Wait)
    assert isinstance(act(run(*CRASH), **GONE), a.StartSurvey)


def test_what_survived_sigkill_ends_the_run() -> None:
    action = act(run(*HUNG, e.SurvivedKill(pids=(b.ROOT,), why=m.said("D"))))
    finished = action.events[0]
    assert finished.exit_code == 75
    assert str(b.ROOT) in why_text(finished.warning)


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
    assert isinstance(action, a.Record)
    told = [each for each in action.events if isinstance(each, e.BackingOff)]
    assert [(each.delay_s, each.until_mono) for each in told] == ([(left_s, 2.0)] if left_s else [])


def test_checkpoints_are_scanned_beside_the_evidence() -> None:
    """As soon as two looks agree that nobody is left to write one."""
    crashed = run(*CRASH[:2])
    left = (b.member(11),)
    assert isinstance(act(crashed, running=EVIDENCE, members=left), a.Wait)
    assert isinstance(act(crashed, running=EVIDENCE, members=(), empty_looks=1), a.Wait)
    assert isinstance(act(crashed, running=EVIDENCE, members=(), empty_looks=2), a.StartSurvey)
    both = EVIDENCE | SURVEY
    assert isinstance(act(crashed, running=both, members=(), empty_looks=2), a.Wait)
    assert isinstance(
        act(crashed, running=EVIDENCE, survey=NOTHING_SAVED, members=(), empty_looks=2), a.Wait
    )
    stale = act(crashed, running=EVIDENCE, survey=NOTHING_SAVED, members=left)
    assert isinstance(stale, a.Record), "somebody was born, and may have written"
    assert stale.consumes == ("survey",)
    for over in ((b.exited(0),), (b.exited(3), b.stop())):
        assert not isinstance(act(run(*over), members=(), empty_looks=2), a.StartSurvey)


@pytest.mark.parametrize(("at", "expected"), [(8.9, a.Wait), (9.0, a.Launch)])
def test_a_backoff_is_kept(at: float, expected: type[a.Action]) -> None:
    backing = e.BackingOff(delay_s=9.0, until_mono=9.0, why=m.said(""))
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
    action = act(run(*before), request=request(kind))
    event = action.events[0]
    assert (event.mode, event.exit_code) == (mode, code)


def test_who_can_be_asked_is_asked() -> None:
    assert isinstance(act(run(b.stop()), members=(b.rank(words=2, can_stop=True),)), a.AskStop)
    action = act(run(b.stop()))
    assert (action.stage, action.signal) == ("root", 15)


@pytest.mark.parametrize(
    ("history", "running"),
    [((b.stall(), b.collecting()), EVIDENCE), ((b.collecting(why="manual"),), EVIDENCE)],
)
def test_a_soft_stop_waits_for_the_dumps(history: tuple[e.AnyEvent, ...], running: Any) -> None:
    """They are on disk before the first signal; a hard stop does not wait."""
    assert isinstance(act(run(*history, b.stop()), running=running), a.Wait)
    action = act(run(*history, b.stop("now")), running=running)
    assert action.sequence == "now"


def test_a_soft_stop_after_the_dumps_is_a_stop() -> None:
    assert isinstance(act(run(b.stall(), b.stop())), a.StartEvidence)
    action = act(run(*HUNG, b.stop()))
    assert action.sequence == "stop"


# Observing -----------------------------------------------------------------------------------


def test_observing_reports_and_signals_nobody() -> None:
    assert isinstance(act(run(b.stall()), policy=OBSERVE), a.StartEvidence)
    assert kinds(act(run(*HUNG), policy=OBSERVE)) == ["WouldHaveKilled"]
    left = (b.member(11),)
    state = run(b.exited(0))
    assert isinstance(act(state, at=29.0, policy=OBSERVE, members=left), a.Wait)
    assert kinds(act(state, at=31.0, policy=OBSERVE, members=left)) == ["RunFinished"]


def test_observing_ends_when_the_user_stops() -> None:
    assert isinstance(act(run(b.stop()), policy=OBSERVE), a.Signal)
    state = run(b.exited(0), b.stop())
    assert isinstance(act(state, policy=OBSERVE, members=(b.member(11),)), a.Signal)


# Saves ---------------------------------------------------------------------------------------

ASKED = e.SaveRequested(by="wtrain save", sequence=1, can_be_asked=True)
SAVED = m.SaveRecord(format="hf", path="/out/5", step=5, t=1e9 + 1.0)


def survey(*, whole: bool) -> m.Survey:
    finding = m.CheckpointFinding(
        path="/out/5", format="hf", step=5, whole=whole, said="", how_checked="recorded"
    )
    return m.Survey(findings=(finding,), directories=("/out",))


def test_a_save_is_proven_by_a_whole_checkpoint() -> None:
    assert isinstance(act(run(), request=request("save")), a.AskSave)
    state = run(ASKED)
    assert isinstance(act(state, at=2.0), a.Wait)
    assert isinstance(act(state, at=2.0, last_save=SAVED), a.StartSurvey)
    proven = act(state, at=4.0, last_save=SAVED, survey=survey(whole=True))
    assert kinds(proven) == ["SaveProven"]
    partial = act(state, at=4.0, last_save=SAVED, survey=survey(whole=False))
    assert partial == a.Record(events=(), consumes=("survey",))


def test_a_partial_save_is_not_surveyed_for_ever() -> None:
    """Looks cost CPU time that is the training's."""
    assert isinstance(act(run(ASKED), at=70.0, last_save=SAVED), a.Wait)


@pytest.mark.parametrize("whole", [True, False])
def test_an_unproven_save_does_not_keep_the_run_from_going_on(whole: bool) -> None:
    """After the end the survey belongs to the next plan."""
    action = act(run(ASKED, *CRASH), at=9.0, last_save=SAVED, survey=survey(whole=whole), **GONE)
    if whole:
        assert kinds(action) == ["SaveProven"]
        assert action.consumes == ()
    else:
        assert "PlanMade" in kinds(action)


def test_a_survey_from_before_the_end_is_dropped() -> None:
    """It may have missed the newest checkpoint."""
    state = run(*CRASH[:2])
    action = act(state, running=EVIDENCE, survey=survey(whole=True))
    assert action == a.Record(events=(), consumes=("survey",))
