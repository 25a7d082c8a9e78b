"""Numbers for Prometheus: their format, and the file of a real run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support import FAST_LIMITS, changed, start_wtrain, wait_until, write_fast_config
from watchdog_train.core import events as e
from watchdog_train.core.events import decode
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.report.metrics_text import metrics_text

GOLDEN = Path(__file__).parents[1] / "golden"
WAITS = "import os, time\nwhile not os.path.exists('end'): time.sleep(0.1)"
UNTIL_THE_END = (sys.executable, "-S", "-c", WAITS)
LINE = re.compile(r'wtrain_[a-z_]+\{([a-z_]+="([^"\\\n]|\\.)*",?)+\} -?\d+(\.\d+)?(e-?\d+)?')


def check(text: str) -> dict[str, list[str]]:
    """Every line is of the format, each name has its type before it, no series comes twice."""
    found: dict[str, list[str]] = {}
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        elif not line.startswith("# HELP "):
            assert LINE.fullmatch(line), line
            name = line.partition("{")[0]
            assert name in typed
            found.setdefault(name, []).append(line)
    series = [line.rpartition(" ")[0] for lines in found.values() for line in lines]
    assert len(series) == len(set(series))
    return found


@pytest.mark.parametrize("name", ["stall_resumed", "gave_up", "healthy", "crash_then_success"])
def test_every_state_of_a_run_is_of_the_format(name: str) -> None:
    """After each event of recorded runs; a name that would break out of its quotes is escaped."""
    state = State()
    for line in (GOLDEN / f"{name}.events.jsonl").read_bytes().splitlines():
        event = decode(line)
        if isinstance(event, e.RunStarted):
            event = e.RunStarted(**{**_fields(event), "name": 'x"} 1\nevil{a="\\'})
        state = evolve(state, event)
        found = check(metrics_text(state, None, state.progress))
    assert found["wtrain_run_finished"]
    restarts = {"stall_resumed": ("stall", 1), "crash_then_success": ("crash", 1)}.get(name)
    if restarts is not None:
        wanted = f'reason="{restarts[0]}"}} {restarts[1]}'
        assert any(line.endswith(wanted) for line in found["wtrain_restarts_total"])


def _fields(event: e.RunStarted) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_a_run_leaves_its_numbers_in_a_file(tmp_path: Path) -> None:
    """While it runs, and the last ones after its end."""
    write_fast_config(tmp_path, limits=changed(FAST_LIMITS, timing={"metrics_s": 0.2}))
    numbers = tmp_path / "numbers.prom"

    def running() -> bool:
        return numbers.exists() and (
            'state="running"} 1' in check(numbers.read_text())["wtrain_run_state"][0]
        )

    flags = ("--config", "fast.yaml", "--metrics-file", "numbers.prom")
    run = start_wtrain("run", *flags, "--", *UNTIL_THE_END, cwd=tmp_path)
    wait_until(running, 120, "the file tells that it runs")
    (tmp_path / "end").touch()
    run.result(120).check(0)
    found = check(numbers.read_text())
    assert found["wtrain_run_finished"][0].endswith('outcome="succeeded"} 1')
    assert not list(tmp_path.glob(".numbers*"))


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    """And costs nothing else."""
    write_fast_config(tmp_path, limits=changed(FAST_LIMITS, timing={"metrics_s": 0.2}))
    flags = ("--config", "fast.yaml", "--metrics-file", "no/such/dir/x.prom")
    run = start_wtrain("run", *flags, "--", *UNTIL_THE_END, cwd=tmp_path)
    wait_until(lambda: "metrics file cannot be written" in run.stderr, 60, "it is said")
    (tmp_path / "end").touch()
    done = run.result(60).check(0)
    assert done.stderr.count("metrics file cannot be written") == 1
