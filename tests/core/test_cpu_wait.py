"""A tree in line for a CPU: starved is no silence, and a hang is not excused by busy neighbours."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import builders as b
from watchdog_train.core.detection.cpu_wait import CpuLine, Waits, advance, unasked
from watchdog_train.core.detection.detect import verdict
from watchdog_train.core.detection.track import advance as fold
from watchdog_train.core.detection.track import new_track
from watchdog_train.core.model import MemberSample, ThreadWait
from watchdog_train.core.policy import Detection
from watchdog_train.report.why_text import why_text


def waits(*each: tuple[int, int, float, int]) -> Waits:
    """From (pid, thread, seconds in line, turns)."""
    found: dict[int, dict[int, ThreadWait]] = {}
    for pid, thread, waited_s, turns in each:
        found.setdefault(pid, {})[thread] = ThreadWait(waited_s=waited_s, turns=turns)
    return found


def member(state: str = "S", cpu_s: float | None = 0.0, pid: int = 10) -> MemberSample:
    return msgspec.structs.replace(b.member(pid, state=state), cpu_s=cpu_s)


def waited_s(*looks: tuple[MemberSample, Waits]) -> float:
    """After looks at each second."""
    line = CpuLine()
    for at, (seen, found) in enumerate(looks):
        line = advance(line, (seen,), found, float(at))
    return line.waited_s


def test_the_thread_that_waited_longest_counts() -> None:
    """Not their sum: twenty that wait for a moment each are no work that waits."""
    first = waits((10, 10, 1.0, 5), (10, 11, 7.0, 5), (12, 12, 0.0, 1))
    second = waits((10, 10, 1.2, 6), (10, 11, 7.6, 9), (12, 12, 0.1, 2))
    assert waited_s((member(), first), (member(), second)) == pytest.approx(0.6)


def test_who_has_had_no_turn_waited_all_the_while() -> None:
    """The kernel counts a wait when it ends: of one that lasts there is only the state."""
    stands = waits((10, 10, 1.0, 5))
    assert waited_s((member("R"), stands), (member("R"), stands)) == pytest.approx(1.0)
    assert waited_s((member("S"), stands), (member("R"), stands)) == 0.0
    another = waits((10, 11, 1.0, 5))
    assert waited_s((member("R"), another), (member("R"), another)) == 0.0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("R", 0.0), ("R", 0.1), 0.9),
        (("R", 0.0), ("R", 0.9), 0.0),
        (("S", 0.0), ("R", 0.0), 0.0),
        (("R", 0.0), ("S", 0.0), 0.0),
        (("R", None), ("R", None), 0.0),
    ],
)
def test_states_where_the_kernel_does_not_tell(
    before: tuple[str, float | None], after: tuple[str, float | None], expected: float
) -> None:
    """Runnable at two looks in a row with little CPU time in between."""
    assert waited_s((member(*before), {}), (member(*after), {})) == pytest.approx(expected)


def test_what_happened_while_nobody_asked_is_not_counted() -> None:
    """And one that took the number of another has no past."""
    line = advance(CpuLine(), (member(),), waits((10, 10, 0.0, 1)), 0.0)
    line = advance(unasked(line), (member(),), waits((10, 10, 50.0, 2)), 60.0)
    assert line.waited_s == 0.0
    line = advance(line, (member(),), waits((11, 11, 50.0, 2)), 61.0)
    assert line.waited_s == 0.0


THREADS = st.dictionaries(
    st.integers(1, 3),
    st.dictionaries(
        st.integers(1, 4),
        st.builds(ThreadWait, waited_s=st.floats(0, 1e6), turns=st.integers(0, 9)),
    ),
)
SEEN = st.lists(
    st.builds(member, st.sampled_from("RSD"), st.none() | st.floats(0, 1e6), st.integers(1, 3)),
    max_size=3,
)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), SEEN, THREADS, st.booleans()), max_size=12))
def test_it_never_shrinks_and_never_outruns_the_clock(
    looks: list[tuple[float, list[MemberSample], Waits, bool]],
) -> None:
    """Whatever the kernel says."""
    line, at = CpuLine(), 0.0
    for passed_s, members, found, asks in looks:
        at += passed_s
        before = line.waited_s
        line = advance(line, members, found, at) if asks else unasked(line)
        assert 0.0 <= line.waited_s - before <= passed_s + 1e-6


@given(st.lists(st.floats(0.0, 0.55), min_size=60, max_size=60), st.floats(0.0, 0.02))
def test_a_hang_is_suspected_whatever_its_neighbours_do(
    in_line: list[float], cpu_share: float
) -> None:
    """Short waits in line, each window less than the limit: no excuse."""
    track, rules, total = new_track(0.0), Detection(), 0.0
    kinds = []
    for at, share in enumerate(in_line):
        total += min(share, 0.29)
        poll = b.sample(float(at), b.rank(words=3), cpu_s=cpu_share * at, cpu_wait_s=total)
        track = fold(track, poll, rules)
        kinds.append(verdict(track, poll, rules).kind)
    assert kinds[-1] == "suspect"


def test_over_the_hard_limit_the_words_tell_who_is_to_blame() -> None:
    """Said and dumped, as for any job that is busy; never called a stall."""
    track, rules = new_track(0.0), Detection()
    for at in range(960):
        poll = b.sample(float(at), b.rank(words=3), cpu_s=0.01 * at, cpu_wait_s=0.7 * at)
        track = fold(track, poll, rules)
    found = verdict(track, poll, rules)
    assert (found.kind, found.basis) == ("suspect", "hard-budget")
    assert why_text(found.why).endswith(
        "the job gets no CPU: other programs use this machine's CPUs"
    )
