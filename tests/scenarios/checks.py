"""What several scenarios assert about an event log."""

from __future__ import annotations

import signal
from collections.abc import Container
from pathlib import Path

from tests.support import CompletedRun, Event, is_alive, of_type, signals_of


def first_seq(events: list[Event], name: str) -> int:
    """Sequence number of the first event of a type; fails when there is none."""
    found = of_type(events, name)
    assert found, f"no event {name}"
    return int(found[0]["seq"])


def kills(events: list[Event]) -> list[Event]:
    """Stages of a kill sequence that had somebody to signal."""
    return [event for event in of_type(events, "signalling") if event["targets"]]


def assert_log_is_sound(run: CompletedRun) -> None:
    """Sequence without gaps, an end, and every event of a known attempt."""
    events = run.events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), run.describe()
    assert events[0]["type"] == "run_started"
    assert events[-1]["type"] == "run_finished", run.describe()
    assert events[-1]["exit_code"] == run.returncode, run.describe()


def assert_never_killed(run: CompletedRun) -> None:
    """No stall, no signal and one attempt: the run was left in peace."""
    assert not run.of_type("stall_declared"), run.describe()
    assert not kills(run.events), run.describe()
    assert not run.of_type("signalled"), run.describe()
    assert len(run.of_type("attempt_launched")) == 1, run.describe()


def assert_evidence_came_first(run: CompletedRun) -> None:
    """The bundle was complete on disk before the first signal; nobody is missing without a why."""
    events = run.events
    collected = of_type(events, "evidence_collected")[0]
    signals = kills(events)
    assert signals, run.describe()
    assert collected["seq"] < signals[0]["seq"], run.describe()
    for process in collected["processes"]:
        assert process["captured"] or process["why_not"], process
    seen = {process["pid"] for process in collected["processes"]}
    killed = {one["pid"] for one in signals_of(events) if one["role"] != "keeper"}
    assert killed <= seen, f"killed without evidence: {killed - seen}\n{run.describe()}"
    bundle = Path(collected["dir"])
    bundle = bundle if bundle.is_absolute() else run.run_dir / bundle
    assert (bundle / "verdict.json").is_file()
    assert (bundle / "SUMMARY.md").is_file()
    stacks = list((bundle / "stacks").glob("*.json"))
    assert len(stacks) >= sum(1 for process in collected["processes"] if process["captured"])


def assert_asked_before_killed(run: CompletedRun) -> None:
    """No process got SIGKILL in a hang sequence before the ranks were asked to end."""
    numbers = [event["signal"] for event in kills(run.events) if event["sequence"] == "hang"]
    assert int(signal.SIGTERM) in numbers, run.describe()
    if int(signal.SIGKILL) in numbers:
        assert numbers.index(int(signal.SIGTERM)) < numbers.index(int(signal.SIGKILL))


def assert_tree_is_gone(run: CompletedRun) -> None:
    """Every process that was ever launched or signalled has ended, and the log says so."""
    events = run.events
    launched = of_type(events, "attempt_launched")
    gone = of_type(events, "tree_gone")
    assert {event["attempt"] for event in launched} == {event["attempt"] for event in gone}
    pids = {event["pid"] for event in launched} | {event["keeper_pid"] for event in launched}
    pids |= {one["pid"] for one in signals_of(events)}
    assert not [pid for pid in pids if is_alive(pid)], run.describe()
    run_id = events[0]["run_id"]
    left = [
        path
        for place in (Path("/dev/shm"), run.cwd)
        for path in place.rglob(f"*{run_id}")
        if path.parent.name != "wtrain-runs"
    ]
    assert not left, f"left behind: {left}"
    for before, after in zip(gone, launched[1:], strict=False):
        assert before["seq"] < after["seq"], "launched over a live tree"


def assert_ended_in_order(run: CompletedRun) -> None:
    """The log is sound and every process is gone."""
    assert_log_is_sound(run)
    assert_tree_is_gone(run)


def assert_hang_was_handled(run: CompletedRun) -> None:
    """Evidence, SIGTERM, SIGKILL, in this order; at the end nothing is left."""
    assert_ended_in_order(run)
    assert_evidence_came_first(run)
    assert_asked_before_killed(run)


def assert_brought_home(run: CompletedRun) -> None:
    """One restart from the whole checkpoint of step 20, the last of 60 steps, and nothing left."""
    run.check(0)
    assert_ended_in_order(run)
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert run.only("checkpoint_chosen")["step"] == 20, run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert last_line(run.stdout) == "finished step=60"
    assert run.only("run_finished")["outcome"] == "succeeded"


def assert_blames(
    event: Event, rank: int, families: Container[str], *, surely: bool = True, role: str = "rank"
) -> None:
    """The explanation of a bundle names the planted process, and no family that does not fit.

    Where the evidence cannot tell who it was, it may name nobody; a wrong one is never right.
    """
    found = event["explanation"]
    root = found["root"]
    if found["because"] is not None:
        assert family_of(event) in families, found
    if root is None:
        assert not surely, found
    else:
        assert (root["who"]["role"], root["who"]["rank"]) == (role, rank), found


def family_of(event: Event) -> str | None:
    """The cause that an explanation names."""
    because = event["explanation"]["because"]
    return because["family"] if because is not None else None


def last_line(text: str, start: str = "finished ") -> str:
    """The last line of an output that starts so."""
    lines = [line for line in text.splitlines() if line.startswith(start)]
    assert lines, f"no line '{start}...' in:\n{text[-2000:]}"
    return lines[-1]
