"""A user's commands for events: real shells, real ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support import is_alive, run_wtrain, sentence, wait_until
from watchdog_train.commands import Order
from watchdog_train.core.events import CommandResult
from watchdog_train.core.model import Why
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.system import current


def carried_out(
    tmp_path: Path, *commands: str, deadline_s: float = 30.0
) -> tuple[CommandResult, ...]:
    """By the process that a run uses, under its table of children."""
    order = Order(
        commands=tuple(enumerate(commands, 1)),
        event={"event": "stall_declared", "data": {"env": {"MY_TOKEN": "s3cr3t-s3cr3t"}}},
        deadline_s=deadline_s,
        cwd=str(tmp_path),
        out=str(tmp_path / "answer.json"),
    )
    path = tmp_path / "order.json"
    path.write_bytes(msgspec.json.encode(order))
    children = ChildTable(current())
    argv = [sys.executable, "-I", "-m", "watchdog_train.commands.run", str(path)]
    children.spawn(argv, name="commands", deadline_s=order.within_s)
    wait_until(lambda: children.poll() or None, order.within_s + 30, "the end of the child")
    assert not path.exists()
    return msgspec.json.decode(
        (tmp_path / "answer.json").read_bytes(), type=tuple[CommandResult, ...]
    )


def test_one_after_another_with_the_event_on_stdin(tmp_path: Path) -> None:
    """JSON without secrets; one that fails or reads nothing keeps no other from its turn."""
    first, second, third = carried_out(
        tmp_path, "cat > got.json", "echo token=abcdefgh >&2; exit 3", "true"
    )
    event = json.loads((tmp_path / "got.json").read_text())
    assert event["event"] == "stall_declared"
    assert event["data"]["env"] == {"MY_TOKEN": "[removed]"}
    assert (first.ok, first.code) == (True, 0)
    assert (second.ok, second.code, second.why) == (False, 3, Why("exited", exit=3))
    assert second.output == "token=[removed]"
    assert third.ok


@pytest.mark.slow
def test_at_its_deadline_a_command_ends_with_all_it_has_started(tmp_path: Path) -> None:
    """Also what has left its session, ignores SIGTERM, and whose parent is gone."""
    escapee = (
        f"{sys.executable} -c 'import os,signal,time; signal.signal(15, signal.SIG_IGN); "
        'os.setsid(); open("pid", "w").write(str(os.getpid())); time.sleep(600)\' &'
    )
    (result,) = carried_out(
        tmp_path, f"{escapee} while [ ! -s pid ]; do sleep 0.1; done; exit 0", deadline_s=20.0
    )
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid)
    assert result.code == 0
    assert not result.ok
    assert "left running were killed after 20 s" in why_text(result.why)


def test_a_command_that_never_ends_is_killed(tmp_path: Path) -> None:
    """By its deadline, with what it has started; the run ends with the training's code."""
    (tmp_path / "wtrain.yaml").write_text("notify: {command_s: 1s}\n")
    forever = "sleep 600 & echo $! > pid; sleep 600"
    run = run_wtrain("run", "--on", f"run_finished={forever}", "--", "true", cwd=tmp_path).check(0)
    (result,) = run.only("commands_ran")["results"]
    assert "1 s" in sentence(result["why"])
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_restart_waits_for_its_command_and_goes_on_after_its_failure(tmp_path: Path) -> None:
    """The crash is repaired by the command; its bad exit is said, and the end has its command."""
    (tmp_path / "train.sh").write_text("test -e repaired || exit 3\n")
    run = run_wtrain(
        "run",
        "--on", "before_restart=cat > asked.json; touch repaired; exit 5",
        "--on", "run-finished=cat > end.json",
        "--", "sh", "train.sh",
        cwd=tmp_path,
    ).check(0)  # fmt: skip
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert (asked["event"], asked["data"]["plan"]["attempt"]) == ("before_restart", 2)
    end = json.loads((tmp_path / "end.json").read_text())
    assert (end["event"], end["data"]["outcome"]) == ("run_finished", "succeeded")
    assert end["run_id"] == asked["run_id"]
    assert "report.html" in end["message"]
    order = [event["type"] for event in run.events]
    assert order.index("commands_starting") < order.index("commands_ran")
    ran = next(event for event in run.events if event["type"] == "commands_ran")
    assert ran["seq"] < [e["seq"] for e in run.events if e["type"] == "attempt_launching"][1]
    assert sentence(ran["results"][0]["why"]) == "exit code 5"
    assert "command 1 for before_restart failed: exit code 5" in run.stderr


def test_a_wrong_event_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Exit code 78, with what was meant; also from the variable, one on each line."""
    refused = run_wtrain("run", "--on", "stall=x", "--", "touch", "ran", cwd=tmp_path).check(78)
    assert "is no event" in refused.stderr
    two = {"WTRAIN_ON": "run_finished=echo a b > one\nrun_finished=echo c > two"}
    run_wtrain("run", "--", "true", cwd=tmp_path, env=two).check(0)
    assert (tmp_path / "one").read_text() == "a b\n"
    assert (tmp_path / "two").read_text() == "c\n"
    assert not (tmp_path / "ran").exists()
