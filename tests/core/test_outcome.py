"""How a run ends: outcome, exit code and warning, one history a line."""

from __future__ import annotations

import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress, said
from watchdog_train.core.recovery.outcome import finish
from watchdog_train.report.why_text import why_text

STEP = e.FirstStep(rank=0, pid=b.ROOT, step=5, after_s=1.0)
OF_TEN = e.Progress(progress=RunProgress(step=5, total_steps=10), ranks=(), members=())
GAVE_UP = e.GivenUp(why=said("enough"), exit_code=76, outcome="gave_up")
STUCK = e.SurvivedKill(pids=(41, 42), why=said("D"))
ERROR = b.exited(None, None, "not-started", error=said("no such file"))

ALIVE = "still alive after SIGKILL: 41, 42"
RECOVERED = e.StallRecovered(stall_id="0001", why=said(""))
OTHERS_WENT_ON = "rank 1 (pid 11) ended with exit code 1 at step 5, and the other ranks continued"
WHEN_KILLED = "its process hung and was killed"
AFTER_THE_END = (STEP, b.stall(basis="finishing"), b.collected(), b.exited(None, 9))

ENDS: dict[str, tuple[tuple[e.AnyEvent, ...], str, int, str | None]] = {
    "success": ((STEP, b.exited(0)), "succeeded", 0, None),
    "no step": ((b.exited(0),), "succeeded", 0, "no training step was seen"),
    "too early": ((STEP, OF_TEN, b.exited(0)), "succeeded", 0, "ended at step 5 of 10"),
    "a code": ((STEP, b.exited(3)), "failed", 3, None),
    "a signal": ((STEP, b.exited(None, 11)), "failed", 139, None),
    "nobody knows": ((STEP, b.exited(None, None, "gone")), "failed", 75, None),
    "the child's own 77": ((STEP, b.exited(77)), "failed", 77, None),
    "not started": ((ERROR,), "failed", 78, None),
    "gave up": ((STEP, b.exited(3), GAVE_UP), "gave_up", 76, None),
    "stopped": ((STEP, b.stop(), b.exited(0)), "stopped", 77, None),
    "Ctrl-C": ((STEP, b.stop(code=130), b.exited(None, 2)), "stopped", 130, None),
    "Ctrl-C, then stop": ((b.stop(code=130), b.stop(code=77), b.exited(0)), "stopped", 130, None),
    "stuck in the kernel": ((STEP, b.stall(), b.collected(), STUCK), "gave_up", 75, ALIVE),
    "stopped and stuck": ((STEP, b.stop(), STUCK), "stopped", 77, ALIVE),
    "success and stuck": ((STEP, b.exited(0), STUCK), "succeeded", 0, ALIVE),
    "a stall that ends with 0": ((STEP, b.stall(), b.exited(0), STUCK), "gave_up", 75, "41"),
    "a hang after the end": (AFTER_THE_END, "succeeded", 0, WHEN_KILLED),
    "a rank that failed": ((STEP, b.rank_ended(), b.exited(0)), "succeeded", 0, OTHERS_WENT_ON),
    "a rank that was through": ((STEP, b.rank_ended(code=0), b.exited(0)), "succeeded", 0, None),
    "a stall that recovered": ((STEP, b.stall(), RECOVERED, b.exited(0)), "succeeded", 0, None),
}


@pytest.mark.parametrize("name", ENDS)
def test_end(name: str) -> None:
    history, outcome, code, warning = ENDS[name]
    event = finish(b.running(*history))
    assert (event.outcome, event.exit_code) == (outcome, code)
    assert (event.warning is None) == (warning is None)
    assert warning is None or (event.warning and warning in why_text(event.warning))
    assert event.why


def test_a_stop_before_anything_ran() -> None:
    assert finish(b.fold((b.RUN_STARTED, b.stop()))).exit_code == 77
    assert finish(State()).exit_code == 78
