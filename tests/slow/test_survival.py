"""What may happen to wtrain and to the machine without harm to the training, one by one.

The random campaign (tests/scenarios/test_chaos.py) meets all of this at random moments; here every
boundary has its turn, with the same checks after it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.campaign import run_one
from tests.chaos.moments import EVENTS, TROUBLE, Moment, Where
from tests.chaos.trainings import SHAPES, baseline
from tests.scenarios.checks import assert_log_is_sound, assert_never_killed, assert_tree_is_gone
from tests.support import program_command, run_fast, scenario_environment, write_fast_config

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

BOUNDARIES = [
    (where, event, nth)
    for where in ("launch", "ending", "hang", "crash")
    for event, nth in EVENTS[where]
    if (event, nth) != ("signalling", 2)  # this training ends at the first
]


@pytest.fixture(scope="module")
def checksum(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed training ends with."""
    folder = tmp_path_factory.mktemp("baseline")
    return baseline(SHAPES["beats"], folder, scenario_environment(folder))


@pytest.mark.parametrize(("where", "event", "nth"), BOUNDARIES)
def test_the_supervisor_is_killed(
    where: Where, event: str, nth: int, checksum: str, tmp_path: Path
) -> None:
    """SIGKILL right at an event: who adopts settles what was open, and no event is lost."""
    spec = plan.CaseSpec(
        seed=0,
        number=1,
        fault="SIGKILL of the supervisor",
        shape="beats",
        trouble=TROUBLE.get(where, "none"),
        moment=Moment(where, event, nth, 0.0),
        checksum=checksum,
    )
    result = run_one(spec, tmp_path)
    assert result.outcome == "survived", f"{result.complaint()}\n{result.description}"


@pytest.mark.parametrize("how", ["shout", "storm"])
def test_a_loud_training_is_left_in_peace(how: str, tmp_path: Path) -> None:
    """Hundreds of MB of output, or thousands of children: nothing is killed, nothing piles up."""
    cap_bytes = 1 << 20
    write_fast_config(tmp_path, f"output: {{log_cap_bytes: {cap_bytes}}}\n")
    run = run_fast(tmp_path, program_command("loud.py", how), timeout_s=180).check(0)
    assert_log_is_sound(run)
    assert_never_killed(run)
    assert_tree_is_gone(run)
    logs = list((run.run_dir / "attempts/0001").glob("*.log*"))
    assert sum(path.stat().st_size for path in logs) <= 2 * cap_bytes, logs
    count = int(re.search(r"finished count=(\d+)", run.stdout[-200:])[1])  # type: ignore[index]
    assert count > 100, "it was not loud at all"
