"""`wtrain bisect`: with how much less a real hang is gone, told by trials."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support import (
    PROGRAMS,
    CompletedRun,
    Event,
    is_alive,
    of_type,
    program_command,
    read_log,
    run_wtrain,
    start_wtrain,
    wait_until,
    write_fast_config,
)

SLOW = pytest.mark.slow
FOUR_MINUTES = 240.0
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def bisected(tmp_path: Path, case: str, *launch: str, code: int = 0) -> CompletedRun:
    """A bisect within its four minutes, after which nothing runs."""
    config = write_fast_config(tmp_path)
    command = program_command("bisect_cases.py", case)
    told = ("bisect", "--config", str(config), "--", *launch, *command[bool(launch) :])
    done = run_wtrain(*told, cwd=tmp_path, timeout_s=FOUR_MINUTES).check(code)
    trials = launched(tmp_path)
    assert len(trials) == len(rows(done)), done.describe()
    assert not [one for one in trials if is_alive(one["pid"])]
    return done


def launched(tmp_path: Path, trial: str = "*") -> list[Event]:
    """The attempts of trials."""
    logs = sorted(tmp_path.glob(f"wtrain-runs/bisect-*/trial-{trial}/*-*-*/events.jsonl"))
    return [one for log in logs for one in of_type(read_log(log.parent), "attempt_launched")]


def place(text: str) -> str:
    """The line of the program that holds this."""
    lines = (PROGRAMS / "bisect_cases.py").read_text("utf-8").splitlines()
    return f"bisect_cases.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def rows(done: CompletedRun) -> dict[str, str]:
    """Setting -> outcome, of the table."""
    lines = [line.split("  ") for line in done.stdout.splitlines() if line[:1].isdigit()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {cell[1]: cell[2] for cell in cells}


@SLOW
@pytest.mark.timeout(FOUR_MINUTES + 20)
@pytest.mark.parametrize(
    ("case", "launch", "outcomes", "line", "advice"),
    [
        (
            "examples",
            (),
            {"as given": "hung", "2 examples": "ran", "100 examples": "hung"},
            "the hundredth example",
            "--with subset=2 --",
        ),
        (
            "workers",
            (),
            {"as given": "hung", "no workers": "ran", "1 worker": "hung"},
            "with LOCK:",
            "--with num-workers-0 --",
        ),
        (
            "ranks",
            LAUNCH,
            {"as given": "hung", "1 rank": "ran"},
            "do not take part",
            "--nproc-per-node=1",
        ),
    ],
)
def test_what_a_hang_needs_is_found(
    tmp_path: Path,
    case: str,
    launch: tuple[str, ...],
    outcomes: dict[str, str],
    line: str,
    advice: str,
) -> None:
    """The hundredth example, forked workers, a second rank: the line, and what avoids it."""
    done = bisected(tmp_path, case, *launch)
    found = rows(done)
    assert {name: found.get(name) for name in outcomes} == outcomes, done.describe()
    assert f"As given it hangs at {place(line)}" in done.stdout, done.describe()
    assert advice in done.stdout.splitlines()[-1], done.describe()
    assert ("model.pt; remove it before you train" in done.stderr) is (case == "workers")
    evidence = next(one for one in done.stdout.splitlines() if one.startswith("Evidence: "))
    assert Path(evidence.split()[-1]).is_dir()


@SLOW
@pytest.mark.timeout(FOUR_MINUTES + 20)
def test_an_exception_is_named_and_not_called_a_hang(tmp_path: Path) -> None:
    """Two trials are enough for it."""
    done = bisected(tmp_path, "exception", code=76)
    assert f"it fails: rank 0 raised ValueError at {place('raise ValueError')}" in done.stdout
    assert "hung" not in done.stdout
    assert len(rows(done)) == 2


def test_trials_do_not_write_over_checkpoints(tmp_path: Path) -> None:
    """A new folder is replaced by one of the trial; one with checkpoints is refused."""
    out = tmp_path / "out"
    command = ("sh", "-c", 'mkdir -p "$2" && touch "$2/made"', "x", "--output_dir", "out")
    run_wtrain("bisect", "--", *command, cwd=tmp_path).check(0)
    assert not out.exists()
    assert len(list(tmp_path.glob("wtrain-runs/bisect-*/trial-*/output-0/made"))) == 2
    out.mkdir()
    (out / "step-000005.pt").write_bytes(b"mine")
    refused = run_wtrain("bisect", "--", *command, cwd=tmp_path).check(78)
    assert "--in-place" in refused.stderr
    assert [path.name for path in out.iterdir()] == ["step-000005.pt"]
    run_wtrain("bisect", "--in-place", "--", *command, cwd=tmp_path).check(0)
    assert (out / "made").exists()


def test_ctrl_c_ends_the_trial_and_prints_the_table_so_far(tmp_path: Path) -> None:
    """Nothing of it runs afterwards."""
    command = ("sh", "-c", "[ -e ran ] || { touch ran; exit 0; }; exec sleep 600")
    bisect = start_wtrain("bisect", "--", *command, cwd=tmp_path)

    (second,) = wait_until(lambda: launched(tmp_path, "02"), 60, "the second trial is launched")
    bisect.send(signal.SIGINT)
    done = bisect.result(60).check(130)
    assert len(rows(done)) == 1, done.describe()
    assert not is_alive(second["pid"])
