"""A run on a terminal as a person has it: the same to the training, and never in its way."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import bin_path, is_alive, of_type, read_log, run_directories, wait_until
from tests.terminal import Screen, TerminalCommand

WTRAIN = str(bin_path("wtrain"))

LOOK = r"""
import json, os, sys, termios
facts = {
    "isatty": [os.isatty(fd) for fd in (0, 1, 2)],
    "size": list(os.get_terminal_size(1)),
    "TERM": os.environ.get("TERM"),
    "encoding": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.encoding],
    "can read": bool(termios.tcgetattr(0)),
    "typed": input("name? "),
}
sys.stdout.buffer.write(b"\x1b[31mred\x1b[0m \xc3\xa4 \xff\xfe |\n")
sys.stdout.flush()
print(json.dumps(facts))
sys.stderr.write("to stderr\n")
"""

STEPS = """
import os, sys, time
import watchdog_train
print("begin", flush=True)
while os.path.exists("go-on"):
    step = getattr(watchdog_train, "done", 0) + 1
    watchdog_train.done = step
    watchdog_train.beat(step, 100000)
    time.sleep(0.01)
    if os.path.exists("say-it"):
        os.unlink("say-it")
        print("a line of the training", flush=True)
print("end", flush=True)
"""


def script(cwd: Path, text: str) -> str:
    cwd.mkdir(parents=True, exist_ok=True)
    path = cwd / "script.py"
    path.write_text(text)
    (cwd / "go-on").touch()
    return str(path)


def theirs(screen: Screen) -> list[str]:
    return [line for line in screen.lines if not line.startswith("wtrain: ")]


def start(
    cwd: Path, *options: str, env: Mapping[str, str] | None = None, columns: int = 200
) -> TerminalCommand:
    """The stepping script under wtrain; it ends when the file `go-on` is gone."""
    path = script(cwd, STEPS)
    command = [WTRAIN, "run", *options, "--", sys.executable, path]
    return TerminalCommand(command, cwd, env=env, columns=columns)


def says_a_line(cwd: Path) -> None:
    """The training goes on: it is asked for a line and writes it."""
    (cwd / "say-it").touch()
    wait_until(lambda: not (cwd / "say-it").exists(), 10, "the training goes on")


def steps(cwd: Path) -> None:
    """The run has begun and made a step."""
    wait_until(lambda: run_directories(cwd), 30, "the run begins")
    wait_until(lambda: of_type(read_log(run_dir(cwd)), "first_step"), 30, "it steps")


def run_dir(cwd: Path) -> Path:
    return run_directories(cwd)[-1]


def test_the_training_sees_the_same_terminal(tmp_path: Path) -> None:
    """Terminal, size, encodings and input are what they are without us; every byte arrives."""
    shown = []
    for name, before in (("alone", []), ("with", [WTRAIN, "run", "--quiet", "--"])):
        path = script(tmp_path / name, LOOK)
        command = TerminalCommand([*before, sys.executable, path], tmp_path / name, columns=101)
        command.wait_for("name?")
        command.type("Ada\r")
        assert command.end() == 0
        shown.append(command.bytes.replace(b"\r\n", b"\n"))
    alone, with_us = shown
    assert b'"typed": "Ada"' in alone
    lines = [line for line in with_us.splitlines(True) if not line.startswith(b"wtrain: ")]
    assert b"".join(lines) == alone


def test_the_status_line_comes_and_goes(tmp_path: Path) -> None:
    """It shows the newest step while nothing is written, makes way, and is gone at the end."""
    command = start(tmp_path)
    first = command.wait_for(lambda s: s.last.startswith("wtrain: step ")).last
    assert " of 100,000 (" in first
    command.wait_for(lambda s: s.last not in (first, "begin"))
    (tmp_path / "say-it").touch()
    command.wait_for("a line of the training")
    command.wait_for(lambda s: s.last.startswith("wtrain: step "))
    command.wait_for(lambda s: "steps/s" in s.last and "left" in s.last)
    command.resize(24, 60)
    command.wait_for(lambda s: s.last.endswith("…") and len(s.last) < 60)
    command.resize(24, 200)
    command.wait_for(lambda s: s.last.endswith("left"))
    (tmp_path / "go-on").unlink()
    assert command.end() == 0
    assert theirs(command.screen) == ["begin", "a line of the training", "end"]
    kept = [line for line in command.screen.lines if line.startswith("wtrain: step ")]
    assert not kept, command.screen.lines


@pytest.mark.parametrize(
    ("options", "env"),
    [pytest.param((), {"TERM": "dumb"}, id="dumb"), pytest.param(("--quiet",), {}, id="quiet")],
)
def test_no_status_line(options: tuple[str, ...], env: dict[str, str], tmp_path: Path) -> None:
    """A terminal that cannot erase, and a user who wants none, get none; nor any escape of ours."""
    command = start(tmp_path, *options, env=env)
    command.wait_for("begin")
    steps(tmp_path)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2.5, 10, "a moment in which it would be drawn")
    (tmp_path / "go-on").unlink()
    assert command.end() == 0
    assert b"\x1b" not in command.bytes
    assert not [line for line in command.screen.lines if line.startswith("wtrain: step ")]
    assert theirs(command.screen) == ["begin", "end"]
    assert ("watching pid" in "\n".join(command.screen.lines)) == (not options)


@pytest.mark.slow
def test_a_terminal_that_is_held_stops_nobody(tmp_path: Path) -> None:
    """Ctrl-S: training steps on and is watched; after Ctrl-Q everything is shown."""
    command = start(tmp_path)
    command.wait_for("begin")
    command.type("\x13")
    steps(tmp_path)
    says_a_line(tmp_path)
    (tmp_path / "go-on").unlink()
    wait_until(lambda: of_type(read_log(run_dir(tmp_path)), "run_finished"), 30, "it ends")
    command.type("\x11")
    assert command.end() == 0
    assert theirs(command.screen) == ["begin", "a line of the training", "end"]


def test_a_pipe_that_breaks_stops_nobody(tmp_path: Path) -> None:
    """`wtrain run ... 2>&1 | head -1`: the training runs to its end."""
    path = script(tmp_path, STEPS)
    line = f"'{WTRAIN}' run -- '{sys.executable}' '{path}' 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
    command = TerminalCommand(["bash", "-c", line], tmp_path, columns=200)
    steps(tmp_path)
    says_a_line(tmp_path)
    (tmp_path / "go-on").unlink()
    assert command.end() == 0
    assert command.screen.last == "0"
    assert of_type(read_log(run_dir(tmp_path)), "run_finished")[0]["outcome"] == "succeeded"
    output = (run_dir(tmp_path) / "attempts/0001/output.log").read_text()
    assert output.splitlines() == ["begin", "a line of the training", "end"]


def a_shell(tmp_path: Path) -> TerminalCommand:
    """At its prompt."""
    command = ["bash", "--norc", "--noprofile", "-i"]
    shell = TerminalCommand(command, tmp_path, env={"PS1": "> "}, columns=200)
    shell.wait_for(">")
    return shell


@pytest.mark.slow
def test_job_control(tmp_path: Path) -> None:
    """Ctrl-Z stops us and not the training; no line of ours is drawn at the shell's prompt."""
    path = script(tmp_path, STEPS)
    shell = a_shell(tmp_path)
    shell.type(f"'{WTRAIN}' run -- '{sys.executable}' '{path}'\r")
    shell.wait_for(lambda s: s.last.startswith("wtrain: step "))
    shell.type("\x1a")
    stopped = shell.wait_for(lambda s: s.last.startswith(">"))
    assert not [line for line in stopped.lines if line.startswith("wtrain: step ")]
    says_a_line(tmp_path)
    shell.type("bg\r")
    shell.wait_for("a line of the training")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2.5, 10, "a moment in which it would be drawn")
    assert not [line for line in shell.screen.lines if line.startswith("wtrain: step ")]
    shell.type("fg\r")
    shell.wait_for(lambda s: s.last.startswith("wtrain: step "))
    (tmp_path / "go-on").unlink()
    shell.wait_for(lambda s: s.last.startswith(">") and "end" in s.lines)
    assert not of_type(read_log(run_dir(tmp_path)), "suspected")
    shell.type("echo code $?; exit\r")
    shell.wait_for("code 0")
    assert shell.end() == 0


@pytest.mark.slow
def test_a_background_job_that_is_to_be_still(tmp_path: Path) -> None:
    """`stty tostop`: the kernel would stop us for writing; we hold our words back instead."""
    path = script(tmp_path, STEPS)
    shell = a_shell(tmp_path)
    shell.type(f"stty tostop; '{WTRAIN}' run -- '{sys.executable}' '{path}' &\r")
    steps(tmp_path)
    assert "watching pid" not in "\n".join(shell.screen.lines)
    supervisor = read_log(run_dir(tmp_path))[0]["pid"]
    assert is_alive(supervisor)
    state = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[0]
    assert state in ("S", "R"), "the supervisor was stopped"
    shell.type("fg\r")
    shell.wait_for("watching pid")
    (tmp_path / "go-on").unlink()
    shell.wait_for(lambda s: s.last.startswith(">") and "end" in s.lines)
    shell.type("exit\r")
    assert shell.end() == 0


@pytest.mark.slow
def test_a_closed_terminal_stops_nobody(tmp_path: Path) -> None:
    """The window is closed: the training goes on, and is watched to its end."""
    command = start(tmp_path)
    command.wait_for("begin")
    steps(tmp_path)
    command.hang_up()
    command.process.send_signal(signal.SIGHUP)
    says_a_line(tmp_path)
    (tmp_path / "go-on").unlink()
    assert command.process.wait(30) == 0
    assert of_type(read_log(run_dir(tmp_path)), "run_finished")[0]["outcome"] == "succeeded"
