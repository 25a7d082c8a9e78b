"""Verdicts on whole histories of polls: healthy but slow weighs as much as hung."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core.detection.budgets import busy_s
from watchdog_train.core.detection.detect import Verdict, required_windows, verdict
from watchdog_train.core.detection.track import advance, new_track
from watchdog_train.core.model import MemberSample, Sample
from watchdog_train.core.model.waits import ProcessRef, Stopped
from watchdog_train.core.policy import Detection
from watchdog_train.report.why_text import why_text

Poll = Callable[[float], Sample]


def judged(poll: Poll, seconds: float, rules: Detection | None = None) -> Iterator[Verdict]:
    """The verdicts after polls at each second."""
    track, rules = new_track(0.0), rules or Detection()
    for at in range(int(seconds) + 1):
        sample = poll(float(at))
        track = advance(track, sample, rules)
        yield verdict(track, sample, rules)


def judge(poll: Poll, seconds: float, rules: Detection | None = None) -> Verdict:
    return [*judged(poll, seconds, rules)][-1]


def silent(*members: MemberSample, **changes: Any) -> Poll:
    """Nobody makes progress; other signals are functions of the time or constants."""

    def poll(at: float) -> Sample:
        values = {name: value(at) if callable(value) else value for name, value in changes.items()}
        return b.sample(at, *(members or (b.rank(words=3),)), **values)

    return poll


def stepped(until: int, *, every: int = 1, **changes: Any) -> Poll:
    """Regular steps up to a second, then silence."""

    def poll(at: float) -> Sample:
        return silent(b.rank(words=1 + int(min(at, until)) // every), **changes)(at)

    return poll


def busy(at: float) -> float:
    return at


class Row(NamedTuple):
    """A history, the second at which it is judged, and what a suspicion is then about."""

    poll: Poll
    seconds: float
    basis: str = "quiet"
    phase: str = "train"


HEALTHY = {
    "steps": Row(stepped(10_000), 300),
    "sleeps 30 s between learnt steps": Row(stepped(329, every=30), 329 + 25),
    "a long matmul in the main thread": Row(silent(cpu_s=busy), 800),
    "a long evaluation": Row(silent(b.rank(words=9, phase="eval"), cpu_s=busy), 3500),
    "a quiet evaluation within its budget": Row(silent(b.rank(words=9, phase="eval")), 11),
    "whoever reads its output is behind": Row(silent(held_back=True), 5000),
    "a save in D state": Row(silent(b.rank(phase="checkpoint", state="D")), 290),
    "a save in D state that writes": Row(
        silent(b.rank(phase="checkpoint", state="D"), io_bytes=lambda at: 220_000 * int(at)), 1700
    ),
    "rank 0 evaluates alone, at work": Row(
        lambda at: b.sample(at, b.rank(words=9, phase="eval"), b.rank(11, 1, words=9), cpu_s=at),
        800,
    ),
    "rank 0 evaluates alone, quietly": Row(
        silent(b.rank(words=9, phase="eval"), b.rank(11, 1, words=9)), 11
    ),
    "a service and its last task": Row(
        silent(b.rank(phase="idle"), b.member(11, slot=b.slot(11, words=9, phase="finished"))),
        36_000,
    ),
    "a save that writes": Row(
        silent(b.rank(phase="checkpoint"), io_bytes=lambda at: 220_000 * int(at)), 1700
    ),
    "a slow download": Row(
        silent(b.rank(phase="download"), tcp_bytes=lambda at: 10_000 * int(at)), 3500
    ),
    "helpers that are born and die": Row(silent(births=int, deaths=int), 800),
    "CPU time and states that the system does not tell": Row(
        silent(b.rank(words=3, state=None), cpu_s=None), 800
    ),
    "CPU time that the system does not tell, seen running": Row(
        silent(b.rank(words=3, state="R"), cpu_s=None), 800
    ),
    "others have the CPUs": Row(
        silent(cpu_s=lambda at: 0.01 * at, cpu_wait_s=lambda at: 0.6 * at), 800
    ),
    "others have the CPUs, and it gets its turn now and then": Row(
        silent(cpu_s=lambda at: 0.01 * at, cpu_wait_s=lambda at: 3.0 * (at // 4)), 800
    ),
    "a compiler": Row(silent(b.rank(phase="compile"), cpu_s=busy), 3500),
    "a service between two trainings": Row(silent(b.rank(words=9, phase="idle")), 3600),
    "silence that was announced": Row(silent(b.rank(words=3, expect_until_ns=10**15)), 600),
    "output without heartbeats": Row(silent(b.member(), log_bytes=lambda at: int(at) // 100), 3000),
    "only zombies": Row(silent(b.rank(state="Z")), 600),
    "nobody": Row(b.sample, 600),
    "a silent rank while another makes a step every 12 s": Row(
        lambda at: b.sample(at, b.rank(words=3), b.rank(11, 1, words=1 + int(at) // 12)), 90
    ),
    "a rank that is through while another trains": Row(
        lambda at: b.sample(at, b.rank(words=9, phase="finished"), b.rank(11, 1, words=int(at))),
        600,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_is_alive(name: str) -> None:
    poll, seconds, *_ = HEALTHY[name]
    assert judge(poll, seconds).kind == "alive"


SUSPECT = {
    "stops after regular steps": Row(stepped(60), 60 + 16),
    "stops after steps of 30 s": Row(stepped(330, every=30), 330 + 100),
    "hangs before its first step": Row(silent(b.rank(phase="first_step")), 40, phase="first_step"),
    "hangs at import": Row(silent(b.rank(phase="startup")), 70, phase="startup"),
    "hangs in an evaluation": Row(silent(b.rank(words=9, phase="eval")), 100, phase="eval"),
    "hangs after the end": Row(silent(b.rank(phase="finishing")), 100, "finishing", "finishing"),
    "hangs at exit": Row(silent(b.rank(phase="finished")), 100, "finishing", "finished"),
    "polls a lock": Row(silent(cpu_s=lambda at: 0.013 * at), 60),
    "hangs on a machine that others keep busy": Row(silent(cpu_wait_s=lambda at: 0.15 * at), 60),
    "hangs after others have had the CPUs": Row(
        silent(cpu_wait_s=lambda at: 0.6 * min(at, 500.0)), 520
    ),
    "wants a CPU over the hard budget": Row(
        silent(cpu_wait_s=lambda at: 0.6 * at), 950, "hard-budget"
    ),
    "no heartbeat and no output": Row(silent(b.member()), 620, phase="unknown"),
    "nothing is known but that nobody runs": Row(silent(cpu_s=None), 60),
    "held by the kernel": Row(
        silent(b.rank(phase="checkpoint", state="D")), 310, "uninterruptible", "checkpoint"
    ),
    "all signals unknown, over the hard budget": Row(
        silent(b.rank(words=3, state=None), cpu_s=None, io_bytes=None, tcp_bytes=None),
        950,
        "hard-budget",
    ),
    "a task of a service, before its first step": Row(
        silent(b.rank(phase="idle"), b.member(11, slot=b.slot(11, phase="load"))), 60, phase="load"
    ),
    "rank 0 hangs in an evaluation, the other waits": Row(
        lambda at: b.sample(
            at, b.rank(words=9, phase="eval" if at > 3 else "train"), b.rank(11, 1, words=9)
        ),
        100,
        phase="eval",
    ),
    "busy over the hard budget": Row(silent(cpu_s=busy), 950, "hard-budget"),
    "announced silence that is over": Row(silent(b.rank(words=3, expect_until_ns=50 * 10**9)), 60),
    "one rank hangs, the other is through": Row(
        silent(b.rank(words=9, phase="finished"), b.rank(11, 1, words=3)), 100
    ),
}


@pytest.mark.parametrize("name", SUSPECT)
def test_silence_is_suspected(name: str) -> None:
    poll, seconds, basis, phase = SUSPECT[name]
    found = judge(poll, seconds)
    assert (found.kind, found.basis, found.phase) == ("suspect", basis, phase)
    assert found.why


def test_all_ranks_must_be_through_for_finishing() -> None:
    both = silent(b.rank(phase="finished"), b.rank(11, 1, phase="finishing"))
    assert judge(both, 100).basis == "finishing"


def test_a_hidden_signal_asks_for_more_windows() -> None:
    """What the system does not tell could have shown life, so quiet takes longer."""
    detection = Detection()
    windows = [
        required_windows(b.sample(0.0, io_bytes=io, tcp_bytes=tcp), detection)
        for io, tcp in ((0, 0), (None, 0), (0, None), (None, None))
    ]
    assert windows == [3, 6, 6, 9]
    # 25 s default, then 2 s windows from the first poll on: they are long full by then.
    late = stepped(60, io_bytes=None, tcp_bytes=None)
    assert judge(late, 76).kind == "alive"
    assert judge(late, 60 + 19).kind == "suspect"


def test_a_busy_moment_clears_the_suspicion() -> None:
    poll = stepped(60, cpu_s=lambda at: 1.0 if at >= 74 else 0.0)
    assert judge(poll, 76).kind == "alive"
    assert judge(poll, 84).kind == "suspect"


STALL_AT_100, START_AT_100 = Detection(stall_timeout_s=100.0), Detection(startup_timeout_s=100.0)
SAVING = (b.rank(10, 0, words=3, phase="checkpoint"), b.rank(11, 1, words=3))
WRITING = silent(*SAVING, io_bytes=lambda at: int(at * 200_000))
ANNOUNCED = silent(b.rank(words=3, expect_until_ns=300 * 10**9), cpu_s=busy)
FINISHING = silent(b.rank(words=9, phase="finishing"), cpu_s=busy)


@pytest.mark.parametrize(
    ("poll", "limits", "seconds", "basis"),
    [
        (silent(cpu_s=busy), STALL_AT_100, 99, None),
        (silent(cpu_s=busy), STALL_AT_100, 101, "user-limit"),
        # A kill in the middle of a save costs more than the limit; ranks that wait are spared, too.
        (WRITING, STALL_AT_100, 200, None),
        (silent(*SAVING), STALL_AT_100, 200, "user-limit"),
        (WRITING, STALL_AT_100, busy_s("checkpoint", STALL_AT_100) + 5, "user-limit"),
        # --startup-timeout counts from the launch and ends with the first step.
        (silent(b.rank(phase="load"), cpu_s=busy), START_AT_100, 101, "user-limit"),
        (silent(cpu_s=busy), START_AT_100, 200, None),
        # expect() stands in the script, nearer to what happens than an option.
        (ANNOUNCED, STALL_AT_100, 200, None),
        (ANNOUNCED, STALL_AT_100, 301, "user-limit"),
        # A finished training that hangs is killed and never started again.
        (FINISHING, STALL_AT_100, 101, "finishing"),
    ],
)
def test_the_users_limit_also_ends_what_is_busy(
    poll: Poll, limits: Detection, seconds: float, basis: str | None
) -> None:
    """--stall-timeout is the user's word: a stall, whatever the tree does."""
    found = judge(poll, seconds, limits)
    if basis is None:
        assert found.kind == "alive"
    else:
        assert (found.kind, found.basis) == ("stall", basis)
        option = "--startup-timeout" if limits is START_AT_100 else "--stall-timeout"
        assert option in why_text(found.why)


def test_stopped() -> None:
    """Told beside whatever else is true; it hides neither silence nor the user's limit."""
    poll = silent(b.rank(words=3, state="T"), b.rank(11, 1, words=3))
    found = judge(poll, 100)
    assert (found.kind, found.basis) == ("suspect", "quiet")
    (said,) = found.stopped
    assert (said.pids, said.rank, said.seconds) == ((b.ROOT,), 0, 100.0)
    limited = judge(poll, 102, Detection(stall_timeout_s=100.0))
    assert (limited.kind, limited.basis) == ("stall", "user-limit")
    assert limited.stopped[0].pids == (b.ROOT,)


def test_who_holds_it_is_told() -> None:
    """Each cgroup and each debugger has its own reason, with what continues its processes."""
    gdb = Stopped(traced=True, debugger=ProcessRef(77, 1, "gdb"))
    frozen = Stopped(freezer="/g/b c/cgroup.freeze")
    members = [
        msgspec.structs.replace(b.rank(10 + at, at, words=3, state="T"), held=held)
        for at, held in enumerate((frozen, gdb, frozen))
    ]
    found = judge(lambda at: b.sample(at, *members), 10).stopped
    assert why_text(found[0]) == (
        "pids 10 and 12 were frozen by the cgroup /g/b c. "
        "To thaw it: echo 0 > '/g/b c/cgroup.freeze'"
    )
    assert why_text(found[1]) == (
        "rank 1 (pid 11) was held by the debugger gdb (pid 77). "
        "It continues when the debugger releases it."
    )


def test_after_a_stop_every_silence_begins_anew() -> None:
    """Nobody could work meanwhile, so nothing of it counts; a glance of a debugger is no stop."""

    def poll(at: float) -> Sample:
        return b.sample(at, b.rank(words=3, state="T" if 0 < at < 200 else "S"))

    def glance(at: float) -> Sample:
        return b.sample(at, b.rank(words=3, state="t" if at == 9 else "S"))

    assert (judge(poll, 205).kind, judge(poll, 205).moved_at) == ("alive", 0.0)
    assert judge(poll, 279).age_s == 79.0
    assert judge(glance, 98).age_s == 98.0


def test_who_was_stopped_for_a_moment_is_not_told() -> None:
    assert judge(silent(b.rank(words=3, state="t")), 1).stopped == ()


def test_a_sleep_of_the_machine_is_no_silence() -> None:
    def poll(at: float) -> Sample:
        slept = 3600.0 if at >= 50 else 0.0
        return b.sample(at, b.rank(words=1 + int(min(at, 40))), suspended_s=slept)

    assert judge(poll, 55).kind == "alive"
    assert judge(poll, 70).kind == "suspect"


def test_unsaved_work_is_counted_from_the_last_save() -> None:
    def poll(at: float) -> Sample:
        words = 1 + int(min(at, 60))
        return b.sample(at, b.rank(words=words, saves_ended=int(at >= 40)))

    found = judge(poll, 80)
    assert found.kind == "suspect"
    assert found.unsaved_s == 20.0  # up to the last progress: silence is no work


def polling(usual_s: float) -> Callable[[float], float]:
    """CPU time in uneven portions: 40 ms more in every fifth window of two seconds."""
    return lambda at: usual_s * (int(at) // 2) + 0.04 * (int(at) // 10)


@pytest.mark.parametrize(("usual_s", "stays"), [(0.02, True), (0.12, False)])
def test_a_little_more_cpu_time_does_not_end_a_quiet_silence(usual_s: float, stays: bool) -> None:
    """A rank that asks a store over and over is above and below the limit in turns."""
    poll = silent(b.rank(phase="startup"), b.rank(11, 1, phase="startup"), cpu_s=polling(usual_s))
    kinds = [one.kind for one in judged(poll, 599)]
    if stays:
        first = kinds.index("suspect")
        assert first < 80
        assert set(kinds[first:]) == {"suspect"}
    else:
        assert set(kinds) == {"alive"}


def answering(at: float) -> float:
    """CPU time of two ranks that put their Flight Recorders into words at 100 s and 101 s."""
    return 0.16 * ((at >= 100) + (at >= 101))


@pytest.mark.parametrize(
    ("cpu_s", "asked", "stays"),
    [
        (answering, True, True),
        (answering, False, False),
        (lambda at: 0.7 * (at >= 100), True, False),
        (lambda at: 0.6 * max(0.0, at - 100), True, False),
        (lambda at: 0.1 * max(0.0, at - 100), True, False),
    ],
)
def test_what_a_look_costs_the_ranks_does_not_end_its_own_suspicion(
    cpu_s: Callable[[float], float], asked: bool, stays: bool
) -> None:
    """Only in the windows of the look, and only so much: work is seen then, and right after it."""
    ranks = (b.rank(phase="startup"), b.rank(11, 1, phase="startup"))
    poll = silent(*ranks, cpu_s=cpu_s, asked=lambda at: asked and 100 <= at <= 102)
    kinds = [one.kind for one in judged(poll, 129)]
    assert kinds[99] == "suspect"
    assert ("alive" not in kinds[100:]) == stays


def printing(until: int, *members: MemberSample, every: int = 3) -> Poll:
    """A line at each of these seconds, a little work, then nothing."""

    def poll(at: float) -> Sample:
        worked = min(at, until)
        return b.sample(
            at,
            *(members or (b.member(),)),
            cpu_s=0.5 * worked,
            log_bytes=80 * (int(worked) // every),
        )

    return poll


NO_WORDS = b.rank(words=0, phase="startup")


@pytest.mark.parametrize("members", [(), (NO_WORDS,)], ids=["no heartbeat", "no word moves"])
@pytest.mark.parametrize("every", [1, 3, 30])
def test_regular_output_takes_the_place_of_steps(
    members: tuple[MemberSample, ...], every: int
) -> None:
    """Limits are known after 8 intervals, as with an optimizer; a slow loop gets longer ones."""
    until = 10 * max(every, 3)
    poll = printing(until, *members, every=every)
    assert judge(poll, until + max(11, 2 * every)).kind == "alive"
    found = judge(poll, until + max(25, 3 * every))
    assert (found.kind, found.basis, found.early, found.steady) == ("suspect", "quiet", False, True)


@pytest.mark.parametrize(
    "lines", [(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (1, 2, 3, 4, 20, 21, 22, 40, 41, 90, 91)]
)
def test_the_output_of_a_start_is_no_loop(lines: tuple[int, ...]) -> None:
    def poll(at: float) -> Sample:
        return b.sample(at, b.member(), cpu_s=0.0, log_bytes=80 * sum(at >= t for t in lines))

    found = judge(poll, lines[-1] + 30)
    assert (found.kind, found.early, found.steady) == ("suspect", True, False)


@pytest.mark.parametrize(
    ("word", "phase"),
    [(3, "train"), (4, "first_step"), (5, "startup")],
    ids=["backward", "batch", "bar"],
)
def test_a_loop_without_steps_is_learned_and_outlives_the_limit_of_a_start(
    word: int, phase: Any
) -> None:
    limits = Detection(startup_timeout_s=60.0)

    def poll(at: float) -> Sample:
        count = int(min(at, 120)) // 3
        words = tuple(count if each == word else 0 for each in range(8))
        return b.sample(at, b.rank(words=words, phase=phase), cpu_s=0.5 * min(at, 120))

    assert judge(poll, 119, limits).kind == "alive"
    hung = judge(poll, 120 + 25)
    assert (hung.kind, hung.early) == ("suspect", False)
    assert judge(poll, 120 + 65, limits).kind == ("suspect" if word == 3 else "stall")


def test_a_wait_in_the_kernel_is_counted_from_its_own_beginning() -> None:
    """Also past the hard limit of learned steps, and what moves at times is none."""

    def poll(at: float, until: int = 600) -> Sample:
        works = 1 + int(min(at, 60))
        member = b.rank(words=works, state="D" if at > 60 else "S")
        return b.sample(at, member, cpu_s=min(at, 60.0) + (0.5 * at if 60 < at < until else 0.0))

    assert judge(poll, 1000).basis == "uninterruptible"
    assert 390 < judge(poll, 1000).quiet_s < 401
    assert judge(lambda at: poll(at, 60), 200).kind == "alive"
    held = judge(lambda at: poll(at, 60), 365)
    assert (held.basis, held.alone) == ("uninterruptible", False)
    assert 300 < held.quiet_s < 306


@pytest.mark.parametrize(("until", "since"), [(102, 100), (110, 110)])
def test_what_ends_a_step_is_no_work_of_the_silence(until: int, since: int) -> None:
    """A log line or a worker that stops after the last beat; longer work begins the quiet anew."""

    def poll(at: float) -> Sample:
        return b.sample(at, b.rank(words=1 + int(min(at, 100))), cpu_s=min(at, until))

    found = judge(poll, 150)
    assert 150 - since - 1 <= found.quiet_s <= 150 - since


@pytest.mark.parametrize(
    ("poll", "spins"),
    [
        (stepped(100, cpu_s=busy), True),
        (stepped(100, cpu_s=busy, io_bytes=lambda at: 100_000 * int(at)), False),
        (stepped(100, cpu_s=busy, log_bytes=int), False),
        (stepped(100, cpu_s=busy, births=int), False),
        (lambda at: b.sample(at, b.rank(words=3), b.rank(11, 1, words=int(at)), cpu_s=at), False),
    ],
)
def test_busy_is_maybe_a_live_lock_only_while_nothing_but_cpu_time_moves(
    poll: Poll, spins: bool
) -> None:
    found = judge(poll, 1100)
    assert found.basis == "hard-budget"
    assert (found.spins_s > 900) is spins
    assert spins or not found.spins_s
