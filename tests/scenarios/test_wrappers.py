"""A training behind a shell script or another wrapper: watched, resumed, stopped, ended."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_ended_in_order,
    assert_hang_was_handled,
    assert_tree_is_gone,
)
from tests.support import (
    EXAMPLES,
    PROGRAMS,
    CompletedRun,
    RunningWtrain,
    bin_path,
    program_command,
    run_fast,
    run_wtrain,
    sentence,
    signals_of,
    start_fast,
    wait_until,
)

pytestmark = pytest.mark.timeout(190)

RESUME = ("--resume-arg", "--resume {checkpoint}")
Wrap = Callable[[Path, Sequence[str]], list[str]]
"""Directory and command -> the command behind a wrapper; arguments at the end reach the command."""


def script(text: str) -> Wrap:
    """`bash run.sh`, in which COMMAND stands for the training."""

    def wrap(cwd: Path, command: Sequence[str]) -> list[str]:
        (cwd / "run.sh").write_text(text.replace("COMMAND", shlex.join(command)))
        return ["bash", "run.sh"]

    return wrap


def before(*words: str) -> Wrap:
    """A program that is put before the command."""
    return lambda _cwd, command: [*words, *command]


def uv_run(_cwd: Path, command: Sequence[str]) -> list[str]:
    return [str(bin_path("uv")), "run", "--no-project", "--offline", *command]


def conda_run(*options: str) -> Wrap:
    """A stand-in of that name: it starts a bash script which runs the command as its child."""

    def wrap(cwd: Path, command: Sequence[str]) -> list[str]:
        conda = cwd / "bin" / "conda"
        conda.parent.mkdir(exist_ok=True)
        like = shlex.join([sys.executable, str(PROGRAMS / "conda_like.py")])
        conda.write_text(f'#!/bin/sh\nexec {like} "$@"\n')
        conda.chmod(0o755)
        return [str(conda), "run", "-n", "training", *options, *command]

    return wrap


def make(cwd: Path, command: Sequence[str]) -> list[str]:
    """Arguments reach a recipe as a variable of make."""
    (cwd / "Makefile").write_text(f"train:\n\t{shlex.join(command)} $(ARGS)\n")
    return ["make", "train"]


WRAPPERS: dict[str, Wrap] = {
    "script": script('COMMAND "$@"\n'),
    "script-goes-on": script('COMMAND "$@" && echo after\n'),
    "script-exec": script('export OMP_NUM_THREADS=1\nexec COMMAND "$@"\n'),
    "script-pipeline": script('set -o pipefail\nCOMMAND "$@" | tee -a log.txt\n'),
    "script-background": script('COMMAND "$@" &\nwait $!\n'),
    "script-timeout": script('nice -n 1 env EXTRA=1 timeout 1000 COMMAND "$@"\n'),
    "sh-c": lambda _cwd, command: ["sh", "-c", f'true && {shlex.join(command)} "$@"', "sh"],
    "uv-run": uv_run,
    "conda-run": conda_run(),
    "nice-env-stdbuf": before("nice", "-n", "1", "env", "EXTRA=1", "stdbuf", "-oL"),
    "timeout": before("timeout", "1000"),
    "time": before("time", "-p"),
    "nohup": before("nohup"),
    "make": make,
}


def each(*fast: str, names: Sequence[str] = tuple(WRAPPERS)) -> list[object]:
    """Parameters for the wrappers that this machine has; all but some in the slow tier."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


def wrapped(name: str, cwd: Path, *command: str) -> list[str]:
    cwd.mkdir(parents=True, exist_ok=True)
    words = WRAPPERS[name](cwd, command)
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    return words


@pytest.mark.parametrize("name", each())
def test_a_hang(name: str, tmp_path: Path) -> None:
    """The rank is known as one, the whole tree is ended, and the path arrives at the rank."""
    command = wrapped(name, tmp_path, *program_command("loader_sleep.py"))
    resume = ("--resume-arg", "ARGS=--resume={checkpoint}") if name == "make" else RESUME
    run = run_fast(tmp_path, command, *resume, timeout_s=180).check(0)
    assert_hang_was_handled(run)
    processes = run.only("evidence_collected")["processes"]
    roles = [process["role"] for process in processes if process["role"] != "other"]
    assert sorted(roles) == ["rank", "worker", "worker"], run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert "finished step=40" in run.stdout, run.describe()


CODES = {"make": 2}
"""make has one exit code for every failure of a recipe."""


@pytest.mark.parametrize("name", each("script-goes-on"))
def test_its_exit_code_is_passed_on(name: str, tmp_path: Path) -> None:
    """A failure stays one, with its number, and the failed command's words arrive."""
    fail = (sys.executable, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(7)")
    command = wrapped(name, tmp_path, *fail)
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=tmp_path, timeout_s=50)
    run.check(CODES.get(name, 7))
    assert "last words" in run.stderr, run.describe()
    assert_tree_is_gone(run)


SWALLOWS: dict[str, Wrap] = {
    "a script without its arguments": script("COMMAND\n"),
    "sh -c": lambda _cwd, command: ["sh", "-c", shlex.join(command) + " && true"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SWALLOWS))
def test_a_wrapper_that_swallows_the_argument(name: str, tmp_path: Path) -> None:
    """No resume is claimed: that training began again is in the events and in the warning."""
    program = program_command("crash_at_step.py", "exit", "--steps", "60")
    run = run_fast(tmp_path, SWALLOWS[name](tmp_path, program), *RESUME, timeout_s=140).check(0)
    assert run.of_type("checkpoint_chosen"), run.describe()
    (verified,) = run.of_type("resume_verified")
    assert not verified["ok"], run.describe()
    assert "no load of it was seen" in sentence(verified["why"])
    assert "resume not confirmed" in sentence(run.only("run_finished")["warning"])


def crashing(text: str, how: str = "kill", *, launcher: str = "") -> list[str]:
    """A script in which these words stand for a training that fails, succeeds or never ends."""
    program = program_command("crash_at_step.py", how)
    words = [*shlex.split(launcher), *program[bool(launcher) :]]
    text = text.replace("CRASHES", shlex.join([*words, "--always"]))
    text = text.replace("ENDLESS", shlex.join([*words, "--at", "99999"]))
    return ["bash", "-c", text.replace("WORKS", shlex.join([*words, "--at", "3", "--steps", "4"]))]


TORCHRUN = "torchrun --standalone --nproc-per-node 1"
HIDDEN: dict[str, tuple[list[str], int, str]] = {
    "pipe": (crashing("CRASHES | cat", "exception"), 1, "rank 0 raised RuntimeError"),
    "script": (crashing("CRASHES; echo later"), 137, "rank 0 was killed by SIGKILL"),
    "exit code": (crashing("CRASHES; true", "exit"), 9, "rank 0 exited with code 9"),
    "torchrun": (crashing("CRASHES | cat", "exception", launcher=TORCHRUN), 1, "RuntimeError"),
    "retry": (crashing("CRASHES || { touch crashed-once; WORKS; }"), 0, "success"),
    "time limit": (crashing("timeout -s KILL 6 ENDLESS; true"), 0, "success"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("pipe", "retry") else pytest.param(name, marks=pytest.mark.slow)
        for name in HIDDEN
    ],
)
def test_a_crash_behind_an_exit_code_of_0(name: str, tmp_path: Path) -> None:
    """It is the training's, unless the script has made it good."""
    command, code, words = HIDDEN[name]
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=tmp_path, timeout_s=50)
    run.check(code)
    assert words in run.stderr, run.describe()
    behind = "though the command itself exited with code 0" in run.stderr
    assert behind is (code != 0), run.describe()


def test_a_crash_behind_a_pipe_is_restarted(tmp_path: Path) -> None:
    """By the same rules as one that the exit code tells; nothing resumes it, as allowed here."""
    program = shlex.join(program_command("crash_at_step.py", "exception"))
    command = ("bash", "-c", f"{program} | cat")
    run = run_fast(tmp_path, command, "--on-not-resumed", "continue", timeout_s=50).check(0)
    first, second = run.of_type("attempt_exited")
    assert (first["code"], second["code"]) == (1, 0)
    assert run.only("evidence_collected")["crash"]["exception"]["type"] == "RuntimeError"


def start(cwd: Path, name: str, *program: str) -> RunningWtrain:
    """A healthy training behind a wrapper that has taken its first step."""
    running = start_fast(cwd, wrapped(name, cwd, *program))
    running.wait_for("first_step", 90)
    return running


def stop(running: RunningWtrain, way: str) -> CompletedRun:
    """By Ctrl-C or `wtrain stop`; nothing may be left of either."""
    if way == "ctrl-c":
        running.send(signal.SIGINT)
    else:
        run_wtrain("stop", cwd=running.cwd).check(0)
    run = running.result(90).check(130 if way == "ctrl-c" else 77)
    assert_ended_in_order(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    return run


WAYS = pytest.mark.parametrize("way", ["stop", "ctrl-c"])


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("name", ["script", "conda-run", "uv-run", "make"])
def test_a_trainer_saves_at_the_next_step(name: str, way: str, tmp_path: Path) -> None:
    """It is asked through the page, which no wrapper stands before; nobody is signalled."""
    example = str(EXAMPLES / "hf_trainer.py")
    run = stop(start(tmp_path, name, *program_command(example, "--max_steps", "100000")), way)
    assert not run.of_type("signalled"), run.describe()
    assert run.of_type("save_proven"), run.describe()
    assert run.only("run_finished")["warning"] is None, run.describe()


SIGNALLED = ("script", "script-pipeline", "script-timeout", "sh-c", "uv-run")
SIGNALLED += ("conda-run", "timeout", "time", "nohup", "make")


def assert_saved(run: CompletedRun, told: str) -> None:
    """It was told by this signal, once, and had the time that it took."""
    assert [path.name for path in run.cwd.glob("saved-*")] == [f"saved-{told}"], run.describe()
    assert 9 not in [one["signal"] for one in signals_of(run.events)], run.describe()


@WAYS
@pytest.mark.parametrize("name", each(names=SIGNALLED))
def test_a_script_that_saves_on_a_signal(name: str, way: str, tmp_path: Path) -> None:
    """The word reaches it, and it has its whole grace, whatever the wrapper does meanwhile."""
    run = stop(start(tmp_path, name, *program_command("saves_when_told.py")), way)
    assert_saved(run, "SIGINT" if way == "ctrl-c" else "SIGTERM")


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["stop", pytest.param("ctrl-c", marks=pytest.mark.needs_signal_masks)]
)
def test_a_script_in_the_background_saves(way: str, tmp_path: Path) -> None:
    """A shell lets what it starts in its background ignore Ctrl-C: SIGTERM takes its place."""
    command = program_command("saves_when_told.py")
    assert_saved(stop(start(tmp_path, "script-background", *command), way), "SIGTERM")


@pytest.mark.slow
@pytest.mark.needs_signal_masks
def test_a_script_with_a_trap_decides_itself(tmp_path: Path) -> None:
    """What handles SIGTERM for its training is told, and the training is not."""
    text = "trap 'touch trapped; kill -INT $child' TERM\nCOMMAND &\nchild=$!\nwait $child\nwait\n"
    WRAPPERS["trap"] = script("enable -n true 2>/dev/null\n" + text)
    running = start(tmp_path, "trap", *program_command("asks_to_stop.py", "--deaf"))
    run = stop(running, "stop")
    assert (tmp_path / "trapped").exists(), run.describe()


@pytest.mark.slow
@WAYS
def test_a_script_that_goes_on_after_its_training(way: str, tmp_path: Path) -> None:
    """A loop that starts the training for ever is ended with it."""
    WRAPPERS["loop"] = script("while true; do COMMAND; done\n")
    run = stop(start(tmp_path, "loop", *program_command("saves_when_told.py")), way)
    assert list(tmp_path.glob("saved-*")), run.describe()


@pytest.mark.slow
def test_a_wrapper_that_is_killed(tmp_path: Path) -> None:
    """The training behind it is ended before the next attempt, and is no orphan."""
    command = wrapped(
        "script", tmp_path, *program_command("crash_at_step.py", "exit", "--at", "4000")
    )
    running = start_fast(tmp_path, command, *RESUME)
    running.wait_for("first_step", 60)
    wait_until(lambda: list(tmp_path.glob("checkpoints/*.pt")), 60, "a checkpoint")
    os.kill(running.wait_for("attempt_launched", 1)["pid"], signal.SIGKILL)
    second = running.wait_for("attempt_launched", 60, lambda event: event["attempt"] == 2)
    gone = running.wait_for("tree_gone", 1)
    assert gone["seq"] < second["seq"]
    running.send(signal.SIGINT)
    assert_tree_is_gone(running.result(60))
