"""Bad input: a clear error, the documented exit code, never a traceback, never a lost run."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.scenarios.checks import last_line
from tests.support import (
    CompletedRun,
    bin_path,
    program_command,
    remove_under_writers,
    run_fast,
    run_wtrain,
    start_wtrain,
    wtrain_of,
)


def refused(run: CompletedRun, *words: str, code: int = 78) -> CompletedRun:
    """Checks the code, the words, and that nobody saw a traceback."""
    run.check(code)
    assert "Traceback" not in run.stdout + run.stderr, run.describe()
    for word in words:
        assert word in run.stderr, run.describe()
    return run


READING = ("logs", "stalls", "stop", "save", "adopt")
REFUSED = {
    "not found": ("run -- no-such-command-here", "no-such-command-here"),
    "not executable": ("run -- ./not-executable.sh", "not-executable.sh"),
    "no interpreter": ("run -- ./no-interpreter.sh", ""),
    "python forgotten": ("run train.py", "python train.py"),
    "no command": ("run", ""),
    "run forgotten": ("python train.py", "wtrain run -- python train.py"),
    "value": ("run --on-stall sometimes -- true", "sometimes"),
    "subcommand": ("statos", "status"),
    "duration": ("run --stall-timeout soon -- true", "soon"),
    "remedy": ("run --with num-worker-0 -- true", "num-workers-0"),
    "preset": ("run --preset overnite -- true", "overnight"),
    "no config": ("run --config gone.yaml -- true", "gone.yaml"),
    "no run": ("status", ""),
    "no directory": ("checkpoints no-such-directory", "no-such-directory"),
    **{command: (f"{command} nothing-here", "nothing-here") for command in READING},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused(case: str, tmp_path: Path) -> None:
    """With 78 and what it is about, or what was meant."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "not-executable.sh").write_text("#!/bin/sh\ntrue\n")
    script = tmp_path / "no-interpreter.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    line, said = REFUSED[case]
    refused(run_wtrain(*line.split(), cwd=tmp_path), said)
    assert case == "no interpreter" or not (tmp_path / "wtrain-runs").exists()


def test_a_script_or_module_that_is_not_there(tmp_path: Path) -> None:
    """Refused before anything is launched, with its name."""
    for words, name in ((["train.py"], "train.py"), (["-m", "no_such_pkg.train"], "no_such_pkg")):
        refused(run_wtrain("run", "--", sys.executable, *words, cwd=tmp_path), name)
    assert not (tmp_path / "wtrain-runs").exists()


@pytest.mark.parametrize("options", [(), ("-d",)])
def test_too_few_descriptors(options: tuple[str, ...], tmp_path: Path) -> None:
    """The limit is named with the number that is needed, before anything is made or started."""
    shell = ("sh", "-c", 'ulimit -n 8; exec "$0" "$@"', str(bin_path("wtrain")))
    run = run_wtrain("run", *options, "--", "touch", "started", cwd=tmp_path, wtrain=shell)
    refused(run, "too-few-descriptors", "wtrain needs 48", "ulimit -n 1024")
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "wtrain-runs").exists()


def test_config_with_every_kind_of_mistake(tmp_path: Path) -> None:
    """All problems of a config file come at once: file, line, key, and what was meant."""
    (tmp_path / "bad.yaml").write_text(
        "detection:\n  poll_s: soon\n  silnce_s: 2\nrecovery:\n  max_restarts: 900\n"
    )
    run = refused(
        run_wtrain("run", "--config", "bad.yaml", "--", "true", cwd=tmp_path),
        "bad.yaml:2",
        "poll_s",
        "bad.yaml:3",
        "silnce_s",
        "silence_s",
        "bad.yaml:5",
        "max_restarts",
    )
    assert not (tmp_path / "wtrain-runs").exists(), run.describe()
    refused(run_wtrain("config", "check", "bad.yaml", cwd=tmp_path), "bad.yaml:3")


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b\n", "detection: 3\n", "\x00\x01"])
def test_config_that_is_none(text: str, tmp_path: Path) -> None:
    """A file that is no YAML, or YAML of another shape, is refused by name."""
    (tmp_path / "odd.yaml").write_text(text)
    refused(run_wtrain("run", "--config", "odd.yaml", "--", "true", cwd=tmp_path), "odd.yaml")


def test_runs_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A place where no run directory can be made is named, and nothing is started."""
    (tmp_path / "file").write_text("")
    target = tmp_path / "started"
    for place in ("file/runs", "/proc/wtrain-runs"):
        run = run_wtrain("run", "--runs-dir", place, "--", "touch", str(target), cwd=tmp_path)
        refused(run, place)
    assert not target.exists()


def test_run_that_is_ambiguous(tmp_path: Path) -> None:
    """A prefix of two runs is refused with both named."""
    for name in ("sft-a", "sft-b"):
        run_wtrain("run", "--name", name, "--", "true", cwd=tmp_path).check(0)
    refused(run_wtrain("status", "sft-", cwd=tmp_path), "sft-a-", "sft-b-")


def test_corrupt_event_log(tmp_path: Path) -> None:
    """A damaged middle line is said out loud with its place; a torn last line is only dropped."""
    run = run_wtrain("run", "--name", "whole", "--", "true", cwd=tmp_path).check(0)
    log = run.run_dir / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines) + b'{"v":1,"seq":99,"ty')
    torn = run_wtrain("status", "--json", cwd=tmp_path)
    assert torn.json()["outcome"] == "succeeded"
    assert "cut off" in torn.stderr, torn.describe()
    log.write_bytes(b"".join([lines[0], b"not json\n", *lines[1:]]))
    told = run_wtrain("status", cwd=tmp_path)
    assert "Traceback" not in told.stderr, told.describe()
    assert "events.jsonl" in told.stdout + told.stderr, told.describe()
    assert "2" in told.stdout + told.stderr
    refused(run_wtrain("adopt", run.run_dir.name, cwd=tmp_path), "events.jsonl")


def test_show_what_is_not_there(tmp_path: Path) -> None:
    """A run without stalls, and a stall that does not exist, are answered with words."""
    run_wtrain("run", "--", "true", cwd=tmp_path).check(0)
    stalls = run_wtrain("stalls", "--json", cwd=tmp_path).check(0).json()
    assert stalls == {"schema_version": 1, "stalls": []}
    refused(run_wtrain("show", "0042", cwd=tmp_path), "0042")


def environment_without_py_spy(place: Path, wtrain: str) -> tuple[list[str], dict[str, str]]:
    """How to call wtrain from a virtual environment like ours that has no py-spy program."""
    (place / "bin").mkdir(parents=True)
    (place / "bin/python").symlink_to(os.path.realpath(sys.executable))
    ours = Path(sysconfig.get_path("purelib"))
    theirs = place / ours.relative_to(sys.prefix)
    theirs.mkdir(parents=True)
    for entry in ours.iterdir():
        if not entry.name.startswith("py_spy"):
            (theirs / entry.name).symlink_to(entry)
    (place / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text("utf-8"))
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if not Path(folder, "py-spy").exists())
    return [str(place / "bin/python"), wtrain], {"PATH": path}


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment to copy")
def test_without_py_spy(tmp_path: Path) -> None:
    """Without py-spy the hang is still caught; what is missing has its reason and a cure."""
    wtrain, env = environment_without_py_spy(tmp_path / "venv", wtrain_of(tmp_path))
    run = run_fast(
        tmp_path,
        program_command("loader_fork_lock.py"),
        *("--resume-arg", "--resume {checkpoint}"),
        env=env,
        wtrain=wtrain,
    )
    refused(run, code=0)
    bundle = Path(run.only("evidence_collected")["dir"])
    assert "pip install py-spy" in (bundle / "evidence.json").read_text("utf-8")
    assert last_line(run.stdout).startswith("finished step=40 ")


def test_run_directory_that_disappears(tmp_path: Path) -> None:
    """A run whose directory is removed under it ends with the training's own result.

    The keeper tells the exit status itself, and what cannot be written is said in words.
    """
    script = "sleep 3; echo done"
    running = start_wtrain("run", "--", "sh", "-c", script, cwd=tmp_path)
    running.wait_for("attempt_launched", 20)
    remove_under_writers(tmp_path / "wtrain-runs")
    run = running.result(20).check(0)
    assert "Traceback" not in run.stderr, run.describe()
    assert run.stdout == "done\n", run.describe()
    assert "success: exit code 0" in run.stderr, run.describe()
    assert "the log was removed" in run.stderr, run.describe()
    assert "the report could not be written" in run.stderr, run.describe()
    assert not list(Path(running.env["XDG_RUNTIME_DIR"]).iterdir()), "nor is anything left of it"


def test_crash_after_the_run_directory_disappeared(tmp_path: Path) -> None:
    """Evidence, survey and restart do without the removed directory, and nothing of ours fails."""
    script = "test -e again && { echo done; exit 0; }; echo >again; sleep 2; exit 3"
    running = start_wtrain("run", "--", "sh", "-c", script, cwd=tmp_path)
    running.wait_for("attempt_launched", 20)
    remove_under_writers(tmp_path / "wtrain-runs")
    run = running.result(60).check(0)
    assert "attempt 1 has ended: exit code 3" in run.stderr, run.describe()
    assert run.stdout == "done\n", run.describe()


@pytest.mark.slow
def test_keeper_that_never_tells(tmp_path: Path) -> None:
    """A root that is gone beside a silent keeper ends the attempt, with what the kernel knows."""
    running = start_wtrain("run", "--on-crash", "stop", "--", "sleep", "100", cwd=tmp_path)
    launched = running.wait_for("attempt_launched", 20)
    os.kill(launched["keeper_pid"], signal.SIGSTOP)
    os.kill(launched["pid"], signal.SIGKILL)
    run = running.result(90)
    exited = run.only("attempt_exited")
    told = (exited["how_known"], exited["code"], exited["signal"])
    assert told in (("kernel", None, signal.SIGKILL), ("gone", None, None)), run.describe()
    assert run.only("run_finished")["outcome"] != "succeeded"
    assert "Traceback" not in run.stderr, run.describe()
