"""The ladder: history and diagnosis in, the next plan or the end out. One case a line."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.core import builders as b
from watchdog_train.core import model as m
from watchdog_train.core.events import GivenUp
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State, Tree
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery import plans
from watchdog_train.core.recovery.history import _is_newer
from watchdog_train.core.recovery.ladder import Restart, first_plan, next_step
from watchdog_train.errors import EXIT_GAVE_UP
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.report.facts import origin_words
from watchdog_train.report.why_text import why_text

ARGV = ("python", "train.py", "--lr", "0.1")
NOTHING = m.Survey(findings=(), directories=())


def policy(**recovery: Any) -> Policy:
    return Policy(recovery=Recovery(**recovery))


def explained(*remedies: str, family: str | None = "dataloader-worker-stuck") -> m.Explanation:
    return b.explained(*remedies, family=family)


def history(*rows: str | tuple[str, m.Explanation | None], started_at: float = 1000.0) -> State:
    """Attempts from rows `ENDING@STEP [remedy ...] [<CHECKPOINT_STEP]`.

    ENDING: hang, hang/FINGERPRINT, exitN or sigN; STEP: the last step, - for none.
    """
    attempts: list[AttemptRecord] = []
    stalls: list[StallRecord] = []
    for number, row in enumerate(rows, start=1):
        text, told = row if isinstance(row, tuple) else (row, None)
        head, *words = text.split()
        ending, _, reached = head.partition("@")
        ending, _, fingerprint = ending.partition("/")
        step = None if reached == "-" else int(reached)
        saved = next((int(word[1:]) for word in words if word[0] == "<"), None)
        uses = tuple(
            m.RemedyUse(id=word, kind=CATALOGUE[word].kind, why=m.said(""))
            for word in words
            if word[0] != "<"
        )
        plan = m.Plan(
            attempt=number,
            why=m.said(""),
            argv=ARGV,
            checkpoint=None
            if saved is None
            else m.CheckpointRef(
                path=f"/out/checkpoint-{saved}", format="hf", step=saved, how_checked="quick"
            ),
            remedies=uses,
        )
        hung = ending == "hang"
        stalls.append(
            StallRecord(
                id=f"{number:04}",
                why="stall" if hung else "crash",
                attempt=number,
                at=0.0,
                declared_mono=0.0,
                basis="quiet" if hung else None,
                fingerprint=fingerprint or None,
                explanation=told,
                collected=True,
            )
        )
        attempts.append(
            AttemptRecord(
                attempt=number,
                plan=plan,
                token="t",
                launching_mono=0.0,
                trees=(
                    Tree(
                        launched=True,
                        ended=True,
                        gone_at=0.0,
                        code=int(ending[4:]) if ending.startswith("exit") else None,
                        signal=int(ending[3:]) if ending.startswith("sig") else 9 if hung else None,
                        how_known="keeper",
                    ),
                ),
                first_step=None if step is None else 1,
                last_step=step,
                stall_id=f"{number:04}" if hung else None,
                crash_id=None if hung else f"{number:04}",
            )
        )
    best, since = 0, 0
    for number, attempt in enumerate(attempts):
        since += number > 0
        if (attempt.last_step or 0) > best:
            best, since = attempt.last_step or 0, 0
    return State(
        state="killing",
        argv=ARGV,
        attempts=tuple(attempts),
        stalls=tuple(stalls),
        restarts=len(attempts) - 1,
        restarts_since_progress=since,
        started_at=started_at,
    )


def changed(
    state: State, number: int | None = None, *, checkpoint: Any = None, plan: Any = None, **new: Any
) -> State:
    """This attempt, or every one, with other fields of its own, of its plan and its checkpoint."""
    attempts = list(state.attempts)
    for at in range(len(attempts)) if number is None else (number,):
        one = attempts[at]
        of_plan, used = dict(plan or {}), one.plan.checkpoint
        if used is not None and checkpoint:
            of_plan["checkpoint"] = replace(used, **checkpoint)
        attempts[at] = replace(one, plan=replace(one.plan, **of_plan), **new)
    return replace(state, attempts=tuple(attempts))


def finding(path: str, whole: bool | None, **fields: Any) -> m.CheckpointFinding:
    values: dict[str, Any] = {
        "format": "hf", "step": 20, "said": "reason", "how_checked": "quick", "saved_at": 2000.0,
    } | fields  # fmt: skip
    return m.CheckpointFinding(path=path, whole=whole, **values)


def found(*steps: int, whole: bool | None = True, **fields: Any) -> m.Survey:
    findings = tuple(finding(f"/out/checkpoint-{at}", whole, step=at, **fields) for at in steps)
    return m.Survey(findings=findings, directories=("/out",))


def step(state: State, survey: m.Survey | None = None, **recovery: Any) -> Restart | GivenUp:
    answer = next_step(state, survey or NOTHING, policy(**recovery), CATALOGUE)
    assert why_of(answer)
    return answer


def why_of(answer: Restart | GivenUp) -> m.Why:
    return answer.plan.why if isinstance(answer, Restart) else answer.why


def remedies(answer: Restart | GivenUp) -> list[str]:
    assert isinstance(answer, Restart), answer
    return [use.id for use in answer.plan.remedies]


LOADER = explained("num-workers-0", "loader-timeout", "file-system-sharing")
LOCK = explained("num-workers-0", "spawn", "omp-1", family="fork-native-lock")
UNKNOWN = explained(family=None)
OURS_ALONE = explained("none-user-fix", family="import-lock")
OOM = explained("batch-halve-accumulate", family="cuda-oom")
WANDB = explained("wandb-offline", family="logger-service-init")
PASSING = explained("plain-retry", "no-compile", family="triton-autotune")
MPS = explained("cpu-not-mps", "upgrade-library", family="mps-hang")
DDP = explained("debug-detail", "drop-last", family="collective-mismatch")
HUB = explained("hf-offline", "xet-off", family="hub-download")

RESTARTS = {
    # the diagnosis names it, one at a time, in its order
    "named": (history(("hang@5", LOADER)), {}, ["num-workers-0"]),
    "named before the first step": (history(("hang@-", LOADER)), {}, ["num-workers-0"]),
    "second named": (
        history(("hang@5", LOCK), ("hang@5 num-workers-0", LOCK)), {}, ["num-workers-0", "spawn"],
    ),
    "third named": (
        history(
            ("hang@5", LOCK), ("hang@5 num-workers-0", LOCK), ("hang@5 num-workers-0 spawn", LOCK)
        ),
        {}, ["num-workers-0", "spawn", "omp-1"],
    ),
    "in effect costs no attempt": (
        history(("hang@5 num-workers-0", LOCK)), {}, ["num-workers-0", "spawn"],
    ),
    "forbidden is passed over": (
        history(("hang@5", LOCK)), {"without_remedies": ("num-workers-0",)}, ["spawn"],
    ),
    "what helped stays": (
        history(("hang@5", LOCK), ("hang@50 num-workers-0", HUB)), {},
        ["num-workers-0", "hf-offline"],
    ),
    "asked for stays": (
        history(("hang@5 xet-off", LOCK)), {"with_remedies": ("xet-off",)},
        ["xet-off", "num-workers-0"],
    ),
    "crash with a diagnosis": (history(("exit1@5", LOADER)), {}, ["num-workers-0"]),
    "crash before the first step with a diagnosis": (
        history(("exit1@-", explained("num-proc-none", "num-workers-0", family="fork-cuda-init"))),
        {}, ["num-proc-none"],
    ),
    "untried named one gets its turn though the plan is used up": (
        history("exit1@-", ("exit1@-", LOADER)), {}, ["num-workers-0"],
    ),
    # kinds
    "device where the diagnosis names it": (history(("hang@-", MPS)), {}, ["cpu-not-mps"]),
    "not by itself": (history(("hang@5", WANDB)), {}, []),
    "allowed by id": (history(("hang@5", WANDB)), {"allow": ("wandb-offline",)}, ["wandb-offline"]),
    "allowed by kind": (history(("hang@5", WANDB)), {"allow": ("execution",)}, ["wandb-offline"]),
    "for evidence, where it is allowed": (
        history(("hang@5", DDP)), {"allow": ("debug-detail",)}, ["debug-detail"],
    ),
    "for evidence, which may crash": (history(("hang@5", DDP)), {}, []),
    "for evidence once": (
        history(("hang@5", DDP), ("hang@5 debug-detail", DDP)), {"allow": ("debug-detail",)}, [],
    ),
    # unknown cause: fallback settings
    "a plain restart first": (history(("hang@5", UNKNOWN)), {}, []),
    "a plain restart first without evidence": (history("hang@5"), {}, []),
    "a plain restart after progress": (history("hang@5", "hang@50"), {}, []),
    "fallback settings": (
        history(("hang@5", UNKNOWN), ("hang@5", UNKNOWN)), {}, ["num-workers-0", "omp-1"],
    ),
    "fallback settings without the forbidden": (
        history("hang@5", "hang@5"), {"without_remedies": ("num-workers-0",)}, ["omp-1"],
    ),
    "rest of the fallback settings": (
        history("hang@5", "hang@5 num-workers-0"), {}, ["num-workers-0", "omp-1"],
    ),
    "no other experiment": (
        history("hang@5", "hang@5 num-workers-0 omp-1"), {}, ["num-workers-0", "omp-1"],
    ),
    # known cause without a remedy: again, then the fallback settings when it is the same again
    "only the user can": (history(("hang@5", OURS_ALONE)), {}, []),
    "the same stacks again": (
        history(("hang/f@5", OURS_ALONE), ("hang/f@5", OURS_ALONE)), {}, ["num-workers-0", "omp-1"],
    ),
    "other stacks": (history(("hang/f@5", OURS_ALONE), ("hang/g@5", OURS_ALONE)), {}, []),
    "the same stacks with progress": (
        history(("hang/f@5", OURS_ALONE), ("hang/f@50", OURS_ALONE)), {}, [],
    ),
    "used up by limits": (
        history(("hang/f@-", OURS_ALONE), ("hang/g@-", OURS_ALONE)), {}, ["num-workers-0", "omp-1"],
    ),
    "evidence says it passes": (history(("hang@5", PASSING)), {}, []),
    "it did not pass, by the same stacks": (
        history(("hang/f@5", PASSING), ("hang/f@5", PASSING)), {}, ["no-compile"],
    ),
    "it did not pass": (
        history(("hang@-", PASSING), ("hang@-", PASSING)), {}, ["no-compile"],
    ),
    # crashes without a diagnosis
    "plain retry": (history("exit1@5"), {}, []),
    "plain retry of a signal": (history("sig11@5"), {}, []),
    "one early failure": (history("exit1@-"), {}, []),
    "two without progress": (history("exit1@5", "exit1@5", "exit1@5"), {}, []),
    "progress counts anew": (history("exit1@-", "exit1@5", "exit1@-"), {}, []),
    "a training remedy is offered": (history(("exit1@5", OOM)), {}, []),
    "a training remedy allowed by id": (
        history(("exit1@5", OOM)), {"allow": ("batch-halve-accumulate",)},
        ["batch-halve-accumulate"],
    ),
    "a training remedy allowed by kind": (
        history(("exit1@5", OOM)), {"allow": ("training",)}, ["batch-halve-accumulate"],
    ),
    # taken back
    "made it crash": (
        history(("hang@5", LOCK), ("hang@5 num-workers-0", LOCK), "exit1@- num-workers-0 spawn"),
        {}, ["num-workers-0"],
    ),
    "offline without a cache": (history(("hang@-", HUB), "exit1@- hf-offline"), {}, []),
    "not tried a second time": (
        history(("hang@-", HUB), "exit1@- hf-offline", ("hang@-", HUB)), {}, ["xet-off"],
    ),
    "a crash before and after proves nothing": (
        history(("exit1@-", LOCK), ("exit1@- num-workers-0", LOCK)), {}, ["num-workers-0", "spawn"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "recovery", "expected"), RESTARTS.values(), ids=RESTARTS)
def test_what_is_tried_next(state, recovery, expected):
    assert remedies(step(state, **recovery)) == expected


ALL, HUNG = "num-workers-0 omp-1", history("hang@5")
STOPS = {
    "on-stall stop": (history("hang@5"), {"on_stall": "stop"}, 75, "gave_up"),
    "on-stall report": (history("hang@5"), {"on_stall": "report"}, 75, "gave_up"),
    "on-crash stop": (history("exit3@5"), {"on_crash": "stop"}, 3, "failed"),
    "on-crash stop, signal": (history("sig11@5"), {"on_crash": "stop"}, 139, "failed"),
    "no restarts, stall": (history("hang@5"), {"max_restarts": 0}, 75, "gave_up"),
    "no restarts, crash": (history("exit3@5"), {"max_restarts": 0}, 3, "failed"),
    "budget spent": (history("exit1@5", "exit1@4"), {"max_restarts": 1}, 76, "gave_up"),
    "budget spent though one is named": (
        history("exit1@5", ("hang@4", LOADER)), {"max_restarts": 1}, 76, "gave_up",
    ),
    "twice before the first step": (history("exit1@-", "exit1@-"), {}, 76, "gave_up"),
    "three times without progress": (
        history("exit1@5", "exit1@5", "exit1@5", "exit1@5"), {}, 76, "gave_up",
    ),
    "native crashes get no other settings": (
        history("sig11@5", "sig11@5", "sig11@5", "sig11@5"), {}, 76, "gave_up",
    ),
    "fallback settings and plan used up": (
        history(f"hang@- {ALL}", f"hang@- {ALL}"), {}, 76, "gave_up",
    ),
    "twice with a training remedy not allowed": (
        history(("exit1@-", OOM), ("exit1@-", OOM)), {}, 76, "gave_up",
    ),
    "waits for input": (
        history(("hang@5", explained(family="waiting-for-input"))), {}, 76, "gave_up",
    ),
    "exit 0": (history("exit0@5"), {}, 0, "succeeded"),
    "a hang after the end of training": (
        replace(HUNG, stalls=(replace(HUNG.stalls[0], basis="finishing"),)), {}, 0, "succeeded",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "recovery", "code", "ending"), STOPS.values(), ids=STOPS)
def test_when_it_ends(state, recovery, code, ending):
    answer = step(state, **recovery)
    assert isinstance(answer, GivenUp), answer
    assert (answer.exit_code, answer.outcome) == (code, ending)
    assert not why_text(why_of(answer)).endswith(".")  # it goes on in the middle of a line


@pytest.mark.parametrize(("code", "signal", "tried"), [(1, None, []), (None, 9, []), (0, None, [])])
def test_a_rank_that_failed_is_tried_again_like_a_crash(code, signal, tried):
    """Nothing says that loading or threads are to blame; one that left well is a hang."""
    state = history("hang@25")
    stall = replace(state.stalls[0], basis="rank-gone", ranks=(1,))
    end = m.RankEnd(
        pid=11, start=1, rank=1, world_size=2, step=25, phase="train", at=9.0, code=code,
        signal=signal,
    )  # fmt: skip
    answer = step(replace(state, stalls=(stall,), rank_ends=(end,)))
    assert remedies(answer) == tried
    how = "was killed by SIGKILL" if code is None else f"ended with exit code {code}"
    assert f"stood still at step 25: rank 1 (pid 11) {how} at step 25" in why_text(why_of(answer))


def test_giving_up_says_how_to_go_on():
    """The words name what was not allowed, with the options that allow it, and say "gave up" never:
    the outcome does."""
    oom = explained("wandb-offline", family="logger-service-init")
    answer = step(history(*[(f"hang@- {ALL}", oom)] * 2))
    assert (answer.outcome, answer.offers) == ("gave_up", ("wandb-offline",))
    assert "gave up" not in why_text(why_of(answer))
    assert why_text(why_of(answer)).endswith(
        "not allowed so far: --with wandb-offline --allow wandb-offline"
    )


def test_a_newer_checkpoint_counts_as_progress():
    """Steps alone do not grow, but each attempt leaves a newer checkpoint: no limit is reached."""
    rows = ["exit1@25", "exit1@24 <20", "exit1@24 <21", "exit1@24 <22", "exit1@24 <23"]
    state = replace(history(*rows), restarts_since_progress=0)
    assert remedies(step(state, found(24))) == []
    assert isinstance(step(state, found(20)), Restart)
    rows = ["exit1@25", *["exit1@24 <20"] * 4]
    state = replace(history(*rows), restarts_since_progress=0)
    assert isinstance(step(state, found(20)), GivenUp)


@pytest.mark.parametrize(
    ("old", "new", "is_newer"),
    [
        (("e0-s40", 40, {}), ("e1-s20", 20, {}), True),  # as the scan orders them
        (("e1-s20", 20, {}), ("e0-s40", 40, {}), False),
        (("e0-s40", 40, {"step": 40, "epoch": 0}), ("e1-s20", 20, {"step": 20, "epoch": 1}), True),
        (("last", 40, {"step": 40, "epoch": 0}), ("last", 20, {"step": 20, "epoch": 1}), True),
        (("last", 40, {"step": 40}), ("last", 10, {"step": 10}), False),  # began again
        (("last", 40, {}), ("last", 10, {}), False),
        (("removed", None, {}), ("e1-s20", None, {}), True),
        (("e1-s20", 20, {}), ("e1-s20", 20, {}), False),
    ],
)
def test_which_of_two_checkpoints_is_newer(old, new, is_newer):
    """A step that begins anew in each epoch is no proof that a crash came without a gain."""
    first, second = (
        finding(f"/o/{name}", whole=True, step=at, counters=counters, saved_at=2000.0 + changed)
        for (name, at, counters), changed in ((old, 0), (new, 9 * (new[1:] != old[1:])))
    )
    others = (
        finding(f"/o/{name}", whole=True, saved_at=at)
        for name in ("e1-s20", "e0-s40", "last")
        for at in (2000, 2009)
    )
    survey = m.Survey(findings=tuple(others), directories=("/o",))
    if old[0] == "removed":
        second = finding("/o/e1-s20", whole=True, step=None, saved_at=2009.0)
    assert _is_newer(second, first, survey) is is_newer


DELAYS = [
    (history(("hang@5", LOADER)), {}, 0.0),
    (history(("exit1@5", LOADER)), {}, 0.0),
    (history("exit1@5"), {}, 0.0),
    (history("exit1@-"), {}, 0.0),
    (history("exit1@5", "exit1@5"), {}, 2.0),
    (history("exit1@5", "exit1@5", "exit1@5"), {}, 4.0),
    (history("exit1@5", "exit1@5", "exit1@5"), {"backoff_cap_s": 3.0}, 3.0),
    (history(("hang@5", OURS_ALONE)), {}, 0.0),
]


@pytest.mark.parametrize(("state", "recovery", "delay_s"), DELAYS)
def test_the_same_plan_waits_from_the_second_restart_on(state, recovery, delay_s):
    assert step(state, **recovery).delay_s == delay_s


# -- checkpoints -----------------------------------------------------------------------------


CHOICES = {
    "newest whole": ([("c", True), ("b", True)], "c", []),
    "partial passed over": ([("c", False), ("b", True)], "b", ["c"]),
    "unknown passed over for an older whole one": ([("c", None), ("b", True)], "b", ["c"]),
    "unknown where none is whole": ([("c", False), ("b", None), ("a", None)], "b", ["c"]),
    "all partial": ([("c", False), ("b", False)], None, ["c", "b"]),
    "none": ([], None, []),
}


@pytest.mark.parametrize(("rows", "chosen", "rejected"), CHOICES.values(), ids=CHOICES)
def test_which_checkpoint_is_chosen(rows, chosen, rejected):
    """Newest to oldest, the first that is whole; every one passed over has its reason."""
    survey = m.Survey(
        findings=tuple(finding(path, whole) for path, whole in rows), directories=("/",)
    )
    answer = step(history("hang@5"), survey)
    assert isinstance(answer, Restart)
    assert (answer.choice.chosen.path if answer.choice.chosen else None) == chosen
    assert [one.path for one in answer.choice.rejected if one.why] == rejected
    assert (answer.plan.checkpoint is None) is (chosen is None)


def test_what_an_earlier_run_has_left_is_not_resumed():
    """The first attempt began without it; when it was written is for the scan to say."""
    state = history("hang@5")
    before = step(state, found(500, before_run=True))
    assert before.plan.checkpoint is None
    assert "before this run" in why_text(before.choice.rejected[0].why)
    recorded = step(state, found(500, saved_at=900.0))
    assert recorded.plan.checkpoint is not None


def test_an_unknown_checkpoint_that_did_not_load_is_not_used_again():
    """It was tried once and training did not begin: the older one has its turn."""
    state = history("hang@30", "exit1@- <20")
    survey = m.Survey(
        findings=(finding("/out/checkpoint-20", None), finding("/out/checkpoint-10", None)),
        directories=("/out",),
    )
    answer = step(state, survey)
    assert answer.choice.chosen.path == "/out/checkpoint-10"


OLDER = {
    # What the attempts came to: which of the checkpoints of steps 60, 40 and 20 is used next.
    "one failure says nothing": (("exit1@70", "exit1@- <60"), 60),
    "twice before the first step": (("exit1@70", "exit1@- <60", "exit1@- <60"), 40),
    "twice the same later, as with NaN": (("exit1@70", "exit1@66 <60", "exit1@66 <60"), 40),
    "twice in native code": (("exit1@70", "sig11@- <60", "sig11@- <60"), 40),
    "two different failures": (("exit1@70", "exit1@66 <60", "sig11@- <60"), 60),
    "killed from outside": (("exit1@70", "sig9@66 <60", "sig9@66 <60"), 60),
    "each older one once": (("exit1@70", "exit1@- <60", "exit1@- <60", "exit1@- <40"), 20),
    "none is left": (
        ("exit1@70", "exit1@- <60", "exit1@- <60", "exit1@- <40", "exit1@- <20"),
        None,
    ),
    "what did not load is not used again": (
        ("exit1@70", "exit1@- <60", "exit1@- <60", "hang@65 <40"),
        40,
    ),
    "progress in between": (("exit1@70", "exit1@71 <60", "exit1@72 <60"), 60),
    "a hang gets fallback settings first": (("exit1@70", "hang@66 <60", "hang@66 <60"), 60),
    "and then an older one": (
        ("hang@66 <60", "hang@66 <60", *("hang@66 <60 num-workers-0 omp-1",) * 3),
        40,
    ),
}


@pytest.mark.parametrize(("rows", "used"), OLDER.values(), ids=OLDER)
def test_an_older_checkpoint_where_attempts_fail_with_the_newest(rows, used):
    """After the same failure twice, each older valid one once; then it gives up."""
    answer = step(history(*rows), found(60, 40, 20), max_restarts=9)
    if used is None:
        assert answer.exit_code == 76
        assert "resumed from checkpoint-60, checkpoint-40, checkpoint-20" in why_text(
            why_of(answer)
        )
        return
    assert answer.plan.checkpoint.step == used
    passed = [one.path for one in answer.choice.rejected]
    assert passed == [f"/out/checkpoint-{one}" for one in (60, 40, 20) if one > used]
    assert not any(one.torn for one in answer.choice.rejected)
    assert ("passing over checkpoint-60" in why_text(why_of(answer))) is (used < 60)


TWICE = history("exit1@70", "exit1@66 <60", "exit1@66 <60")
KEPT = {
    "it was written again since": (changed(TWICE, 2, checkpoint={"saved_at": 1000.0}), "hf", None),
    "the script would load its newest all the same": (
        replace(TWICE, argv=(*ARGV, "--resume", "auto")), "torch", None,
    ),
    "another training wrote the older one": (TWICE, "hf", "/out/fold-1"),
    "it was not loaded: an older one would not be, either": (
        changed(TWICE, 2, resume="contradicted"), "hf", None,
    ),
    "a person has restarted the run since": (
        replace(history("exit1@70", *["exit1@- <60"] * 2, "exit1@- <40"), reopened_after=4),
        "hf", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "format_", "home"), KEPT.values(), ids=KEPT)
def test_where_the_newest_stays_although_attempts_failed_with_it(state, format_, home):
    newest, older = found(60, 40, format=format_).findings
    survey = m.Survey(findings=(newest, replace(older, home=home)), directories=("/out",))
    assert step(state, survey).choice.chosen.step == 60


def test_what_was_saved_again_on_the_way_to_the_same_failure_is_no_news():
    """From the older one the training saves the newer once more, and fails as before: the next."""
    state = history("exit1@70", "exit1@66 <60", "exit1@66 <60", "exit1@66 <40")
    for number, saved_at in ((1, 1900.0), (2, 1900.0), (3, 1800.0)):
        state = changed(state, number, checkpoint={"saved_at": saved_at})
    findings = tuple(
        finding(f"/out/checkpoint-{number}", True, step=number, saved_at=saved_at)
        for number, saved_at in ((60, 2000.0), (40, 1800.0), (20, 1700.0))
    )
    answer = step(state, m.Survey(findings=findings, directories=("/out",)), max_restarts=9)
    assert answer.choice.chosen.step == 20
    assert [why_text(one.why).partition(":")[0] for one in answer.choice.rejected] == [
        "it is not an older checkpoint of this training",
        "attempt 4 resumed from it and failed",
    ]


@pytest.mark.parametrize(
    ("watched", "load_begun", "trained", "format_", "used"),
    [
        (True, False, False, "hf", None),  # the exception came before the checkpoint was loaded
        (True, True, False, "hf", 40),
        (True, False, True, "hf", 40),
        (False, False, False, "hf", 40),
        (True, False, False, "dcp", 40),  # nobody sees such a load
    ],
)
def test_a_failure_before_the_load_is_not_the_checkpoints(
    watched, load_begun, trained, format_, used
):
    state = changed(
        history("exit1@70", "exit1@- <60", "exit1@- <60"),
        checkpoint={"format": format_},
        first_beat_s=1.0 if watched else None,
        load_begun=load_begun,
        trained=trained,
    )
    answer = step(state, found(60, 40, format=format_), max_restarts=9)
    if used is None:
        assert isinstance(answer, GivenUp)
        assert "checkpoint" not in why_text(why_of(answer)).replace("newer step or checkpoint", "")
    else:
        assert answer.choice.chosen.step == used


def test_an_exception_about_a_checkpoint_blames_it_without_a_seen_load():
    """A script that reads and compares the file itself: two such crashes, then an older one."""
    message = "Error(s) in loading state_dict: size mismatch for weights"
    crash = m.CrashFact(
        exception=m.ExceptionFact(type="RuntimeError", message=message, source="hook"), code=1
    )
    state = history("exit1@70", "exit1@- <60", "exit1@- <60")
    state = changed(state, crash=crash, first_beat_s=1.0)
    assert step(state, found(60, 40, format="hf"), max_restarts=9).choice.chosen.step == 40


def unseen(*seconds: float, trained: bool = False, saved: bool = False) -> Any:
    """What follows hangs of a training whose steps nobody sees."""
    state = changed(history(*["hang@- <1" if saved else "hang@-"] * len(seconds)), trained=trained)
    used = {"path": "/o/m.pt", "format": "torch", "step": None}
    for number, length in enumerate(seconds):
        trees = (replace(state.attempts[number].trees[0], ended_mono=length),)
        state = changed(state, number, checkpoint={**used, "saved_at": number}, trees=trees)
    newest = finding("/o/m.pt", True, format="torch", step=None, saved_at=2000.0 if saved else None)
    survey = m.Survey(findings=(newest,) if saved else (), directories=("/o",))
    return step(state, survey)


def test_a_training_without_counted_steps_is_not_given_up_as_early():
    """It trains, lasts or saves newer files: only a start that hangs twice is at its end."""
    early = unseen(30.0, 30.0)
    assert isinstance(early, GivenUp) or early.plan.remedies
    for answer in (unseen(30.0, 30.0, trained=True), unseen(2000.0, 2000.0)):
        assert isinstance(answer, Restart)
    saving = unseen(30.0, 30.0, 30.0, trained=True, saved=True)
    assert not saving.plan.remedies
    assert "hung in its training steps" in why_text(why_of(saving))


VIAS = [
    ("hf", ARGV, None, "hook", ARGV),
    ("torch", ARGV, None, "env", ARGV),
    ("torch", ARGV, "--resume {checkpoint}", "argv", (*ARGV, "--resume", "/out/checkpoint-20")),
    ("hf", ARGV, "--resume={ckpt}", "argv", (*ARGV, "--resume=/out/checkpoint-20")),
    ("torch", ARGV, "--resume", "script", (*ARGV, "--resume")),
    ("hf", ARGV, "--init_from=resume", "script", (*ARGV, "--init_from=resume")),
    ("torch", (*ARGV, "--resume", "auto"), None, "script", (*ARGV, "--resume", "auto")),
    ("hf", (*ARGV, "--resume_from_checkpoint=x"), None, "script", None),
    ("torch", (*ARGV, "--init_from=resume"), None, "script", None),
    ("hf", (*ARGV, "--resume", "False"), None, "hook", None),
    ("hf", (*ARGV, "--resume"), None, "hook", None),
    ("hf", (*ARGV, "--resume", "out/checkpoint-4"), None, "script", None),
    ("torch", (*ARGV, "--resume=no"), None, "env", None),
]


@pytest.mark.parametrize(("format_", "argv", "template", "via", "expected"), VIAS)
def test_how_the_checkpoint_reaches_the_script(format_, argv, template, via, expected):
    """The user's template first, then the hook, then the environment, and the words say it."""
    state = replace(history("hang@30"), argv=argv)
    answer = step(state, found(20, format=format_), resume_arg=template)
    assert answer.plan.resume_via == via
    assert answer.plan.argv == (argv if expected is None else expected)
    assert "step 20 (checkpoint-20)" in why_text(why_of(answer))
    assert "/out/" not in why_text(why_of(answer))
    assert ("WTRAIN_RESUME_FROM" in why_text(why_of(answer))) is (via == "env")
    assert ("it resumes from" in why_text(why_of(answer))) is (via in ("hook", "argv"))


def test_a_script_that_finds_its_checkpoint_is_asked_to_even_where_we_know_none():
    """Its files may be of a kind that nobody else can read; one from before it is not meant."""
    crashed, gone = history("exit1@30"), NOTHING
    answer = step(crashed, gone, resume_arg="--resume")
    assert (answer.plan.argv, answer.plan.resume_via) == ((*ARGV, "--resume"), "script")
    assert "--resume decides what is loaded" in why_text(why_of(answer))
    assert origin_words(answer.plan) == "where its script decides"
    older = step(crashed, found(20, before_run=True, format="torch"), resume_arg="--resume")
    assert (older.plan.argv, older.plan.resume_via) == (ARGV, "none")
    assert step(crashed, gone, resume_arg="--resume {checkpoint}").plan.argv == ARGV
    # It found none: the next attempt begins anew instead of failing like that again.
    last = replace(history("exit1@30", "exit1@-").attempts[1], plan=answer.plan, first_beat_s=1.0)
    state = replace(crashed, attempts=(*crashed.attempts, last))
    assert step(state, gone, resume_arg="--resume").plan.argv == ARGV
    assert step(state, found(20, format="torch"), resume_arg="--resume").plan.argv == ARGV


AUTO = [
    (("--resume {checkpoint}",), "--resume {checkpoint}", "argv", "by --resume (which the script"),
    (
        ("--restart-every {checkpoint}", "--resume_from_checkpoint {checkpoint}", "--resume"),
        *("--resume_from_checkpoint {checkpoint}", "argv", ""),
    ),
    (("--resume",), None, "env", '--resume-arg "--resume" would resume, if that is what it means'),
    (("--auto-resume",), None, "env", "if that is what it means"),
    (("--resume=auto",), "--resume=auto", "script", "decides what is loaded"),
    (("--init_from=resume",), "--init_from=resume", "script", "--init_from=resume decides"),
    (("--resume-epoch {checkpoint}",), None, "env", "if that is what it means"),
    (("--resume-optimizer",), None, "env", "if that is what it means"),
    ((), None, "env", "no option of the script that resumes is known"),
]


@pytest.mark.parametrize(("options", "used", "via", "words"), AUTO)
def test_auto_uses_only_an_option_that_surely_means_it(options, used, via, words):
    state = replace(history("hang@30"), resume_options=options)
    answer = step(state, found(20, format="torch"), resume_arg="auto")
    assert words in why_text(why_of(answer))
    assert (answer.plan.resume_via, answer.plan.resume_arg) == (via, used)
    passed = (used or "").replace("{checkpoint}", "/out/checkpoint-20").split()
    assert answer.plan.argv == (*ARGV, *passed)
    # Only of what was handed over may be said that the attempt starts from it.
    assert origin_words(answer.plan).startswith(
        {"argv": "to resume from step 20", "script": "where its"}.get(via, "without a known way")
    )


def test_auto_leaves_frameworks_and_the_users_own_word_alone():
    """A hook proves more than an argument, and who says --resume in the command has decided."""
    known = {"resume_options": ("--resume {checkpoint}",)}
    state = replace(history("hang@30"), **known)
    answer = step(state, found(20, format="hf"), resume_arg="auto")
    assert answer.plan.resume_via == "hook"
    state = replace(state, argv=(*ARGV, "--resume", "x"))
    assert step(state, found(20, format="torch"), resume_arg="auto").plan.resume_via == "script"


def test_auto_is_given_up_when_the_script_refuses_it():
    state = changed(history("hang@30", "exit2@-"), 1, plan={"resume_arg": "--resume {checkpoint}"})
    state = replace(state, resume_options=("--resume {checkpoint}",))
    answer = step(state, found(20, format="torch"), resume_arg="auto")
    assert (answer.plan.resume_via, answer.plan.argv) == ("env", ARGV)


def test_no_checkpoint_is_said_loudly():
    answer = step(history("hang@30"))
    assert answer.plan.resume_via == "none"
    assert "training begins from its start" in why_text(answer.plan.why)


@pytest.mark.parametrize(("ordinal", "via"), [(2, "hook"), (None, "env")])
def test_lightning_resumes_by_hook_only_what_a_hook_has_written(ordinal, via):
    """Without a record nobody knows which of several fits a checkpoint is of."""
    chosen = finding("/out/last.ckpt", True, format="lightning", ordinal=ordinal)
    choice = plans.Choice(chosen=chosen, rejected=())
    assert plans.resume(State(argv=ARGV), choice, None, NOTHING).via == via


# -- plans -------------------------------------------------------------------------------------


def test_the_first_plan_is_the_command_as_it_is():
    plan = first_plan(State(argv=ARGV), policy(), CATALOGUE)
    assert (plan.attempt, plan.argv, plan.env, plan.in_process) == (1, ARGV, {}, ())
    assert (plan.checkpoint, plan.resume_via, plan.remedies) == (None, "none", ())


def test_the_first_plan_has_what_was_asked_for():
    """--with applies any kind; --without wins; what is not there is said."""
    recovery = policy(
        with_remedies=("omp-1", "wandb-offline", "spawn", "gone"), without_remedies=("spawn",)
    )
    plan = first_plan(State(argv=ARGV), recovery, CATALOGUE)
    assert [use.id for use in plan.remedies] == ["omp-1", "wandb-offline"]
    assert plan.env["OMP_NUM_THREADS"] == "1"
    assert plan.env["WANDB_MODE"] == "offline"
    assert plan.in_process == ({"id": "omp-1"}, {"id": "wandb-offline"})
    assert "gone" in why_text(plan.why)


def test_a_plan_spells_out_its_settings():
    answer = step(history(("hang@5", LOCK), ("hang@5 num-workers-0", LOCK)), found(20))
    assert answer.plan.attempt == 3
    assert answer.plan.in_process == ({"id": "num-workers-0"}, {"id": "spawn"})
    assert "spawn (starts loader workers by spawn instead of fork)" in why_text(why_of(answer))


def test_a_remedy_that_is_not_here_is_passed_over():
    here = {name: item for name, item in CATALOGUE.items() if name != "num-workers-0"}
    answer = next_step(history(("hang@5", LOCK)), NOTHING, policy(), here)
    assert remedies(answer) == ["spawn"]


def test_every_run_of_the_ladder_ends():
    """Without progress it stops within the budget, and never repeats a setting."""
    for told in (None, LOADER, LOCK, UNKNOWN, OURS_ALONE, OOM, PASSING, HUB, DDP):
        for ending in ("hang/f@-", "hang/f@5", "exit1@-", "exit1@5", "sig11@5"):
            rows: list[tuple[str, m.Explanation | None]] = [(ending, told)]
            while isinstance(answer := step(history(*rows), max_restarts=50), Restart):
                rows.append((" ".join([ending, *remedies(answer)]), told))
                assert len(rows) < 24, (told, ending, rows)
            assert answer.exit_code == EXIT_GAVE_UP


def test_a_hang_of_uncounted_steps_is_not_said_to_be_before_the_first():
    """A loop without torch.optim: it trains, and nobody counts its steps."""
    state = history("hang@-")
    stalls = tuple(replace(one, phase="train") for one in state.stalls)
    answer = step(replace(state, stalls=stalls))
    assert "hung in its training steps" in why_text(why_of(answer))
    assert "hung before its first step" in why_text(why_of(step(state)))
