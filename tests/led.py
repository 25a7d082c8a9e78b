"""What the logs of a job under one leader say: task or node 0 leads, the others are its agents."""

from __future__ import annotations

from pathlib import Path

from tests.support import (
    Event,
    is_alive,
    members_of,
    of_type,
    outline,
    read_log,
    run_directories,
    wait_until,
)


def runs(cwd: Path) -> dict[int, Path]:
    """The newest run directory of each task that has joined."""
    found = {}
    for path in (*run_directories(cwd), *run_directories(cwd, "wtrain-runs/.agents")):
        for joined in of_type(read_log(path), "task_joined"):
            found[joined["task"]["task"]] = path
    return dict(sorted(found.items()))


def logs(cwd: Path) -> dict[int, list[Event]]:
    """The event log of each task that has joined."""
    return {number: read_log(path) for number, path in runs(cwd).items()}


def leader(cwd: Path) -> list[Event]:
    """The one log of the job; empty before there is one."""
    return logs(cwd).get(0, [])


def agents(cwd: Path) -> list[list[Event]]:
    """The logs of all others."""
    return [log for number, log in logs(cwd).items() if number]


def described(cwd: Path) -> str:
    """All of it, and the last words of each command."""
    parts = [f"--- {number}\n{outline(log)}" for number, log in logs(cwd).items()]
    errors = [*cwd.glob("task-*.err"), *cwd.glob(".command-*.err")]
    return "\n".join([*parts, *(path.read_text("utf-8", "replace")[-1500:] for path in errors)])


def wait_for_step(cwd: Path, tasks: int, step: int = 0) -> None:
    """Until every task has joined, and has recorded so much."""

    def there() -> bool:
        found = logs(cwd).values()
        steps = [one["progress"]["step"] for log in found for one in of_type(log, "progress")]
        begun = [1 for log in found if of_type(log, "first_step")]
        return len(begun) == tasks and max((each or 0 for each in steps), default=0) >= step

    wait_until(there, 240, f"every task is at step {step}")


def last_step(cwd: Path) -> int:
    """The newest that the leader has recorded."""
    steps = [one["progress"]["step"] for one in of_type(leader(cwd), "progress")]
    return (steps[-1] if steps else 0) or 0


def attempts(log: list[Event]) -> list[int]:
    """The attempts that were meant to be launched."""
    return [one["attempt"] for one in of_type(log, "attempt_launching")]


def assert_one_plan(cwd: Path, text: str, tasks: int = 2) -> None:
    """Evidence of every task before the first signal, and attempt 2 begun once by each."""
    log = leader(cwd)
    (begun,) = [one for one in of_type(log, "attempt_launching") if one["attempt"] == 2]
    assert len(begun["hosts"]) == tasks, text
    collected = [one["seq"] for one in of_type(log, "evidence_collected")]
    signals = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
    assert len(collected) == tasks, text
    assert not signals or max(collected) < signals[0], text
    assert len(agents(cwd)) == tasks - 1, text
    for each in agents(cwd):
        assert attempts(each) == [1, 2], text


def assert_evidence_first(log: list[Event], text: str) -> None:
    """Some was taken, and before anything was ended."""
    killed = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
    assert of_type(log, "evidence_collected")[0]["seq"] < killed[0], text


def assert_nothing_lives(cwd: Path, text: str) -> None:
    for log in logs(cwd).values():
        assert not [pid for pid in {one.pid for one in members_of(log)} if is_alive(pid)], text
