"""A script's output, exit code and results are the same with and without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import (
    STARTED,
    RunningWtrain,
    program_command,
    run_wtrain,
    scenario_environment,
    write_fast_config,
    wtrain_of,
)

NOISY = """\
import os, sys, warnings
print("to stdout", sys.argv[1:], flush=True)
sys.stderr.write("to stderr\\n")
sys.stdout.write("no newline at the end")
sys.stdout.flush()
os.write(2, bytes(range(256)))
print(sys.flags.dev_mode, sys.stdin.read(), sorted(sys.modules)[:0])
for number in range(20000):
    print("line", number)
sys.exit(int(sys.argv[1]))
"""


def alone(command: list[str], cwd: Path) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of a command without us."""
    cwd.mkdir(parents=True)
    result = subprocess.run(
        command,
        cwd=cwd,
        env=scenario_environment(cwd),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_bytes_and_exit_code(code: int, tmp_path: Path) -> None:
    """Every byte of both streams arrives where it belongs, and the exit code is the script's."""
    script = tmp_path / "noisy.py"
    script.write_text(NOISY)
    command = [sys.executable, str(script), str(code)]
    expected_code, expected_out, expected_err = alone(command, tmp_path / "alone")
    cwd = tmp_path / "with"
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=cwd).check(expected_code)
    assert (cwd / ".command-0.out").read_bytes() == expected_out
    lines = (cwd / ".command-0.err").read_bytes().split(b"\n")
    theirs = b"\n".join(line for line in lines if not line.startswith(b"wtrain: "))
    assert expected_err.strip() in theirs, run.describe()
    captured = run.run_dir / "attempts/0001/stdout.log"
    assert captured.read_bytes() == expected_out


MUCH = """\
import sys, watchdog_train as w
for step in range(1, 201):
    w.beat(step)
    sys.stdout.write(f"{step:09d}\\n" * 10_000)
    sys.stderr.write(f"{step:09d}\\n" * 2_000)
"""
SMALL_LOG = "output: {log_cap_bytes: 2000000}\n"


class SlowReader(threading.Thread):
    """Takes what comes out of a pipe in small pieces, as soon as it is told to."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.fd, self.writes = os.pipe()
        self.pause_s = pause_s
        self.text = bytearray()
        self.begin = threading.Event()
        self.start()

    def run(self) -> None:
        self.begin.wait()
        while data := os.read(self.fd, 65536):
            self.text += data
            time.sleep(self.pause_s)  # this is what makes it slow
        os.close(self.fd)


def piped_wtrain(out: SlowReader, err: SlowReader, *args: str, cwd: Path) -> RunningWtrain:
    """A run of wtrain whose streams go to these readers."""
    config = write_fast_config(cwd, SMALL_LOG)
    command = [wtrain_of(cwd), "run", "--config", str(config), *args]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=scenario_environment(cwd),
        stdin=subprocess.DEVNULL,
        stdout=out.writes,
        stderr=err.writes,
    )
    STARTED.append(process)
    os.close(out.writes)
    os.close(err.writes)
    return RunningWtrain(command, process, cwd, {}, Path(os.devnull), Path(os.devnull))


@pytest.mark.timeout(170)
def test_slow_readers_get_every_byte_and_nobody_is_hung(tmp_path: Path) -> None:
    """20 MB through a log of 2 MB: a training that waits in write for its reader is no stall."""
    script = tmp_path / "much.py"
    script.write_text(MUCH)
    out, err = SlowReader(0.004), SlowReader(0.002)
    options = ("--on-stall", "report", "--", sys.executable, str(script))
    running = piped_wtrain(out, err, *options, cwd=tmp_path)
    err.begin.set()
    said = running.wait_for("noticed", 60, lambda event: event["kind"] == "reader")
    # Longer than a silence would be called a stall here.
    running.wait_for("progress", 60, lambda event: event["mono"] > said["mono"] + 12)
    out.begin.set()
    out.join(90)
    err.join(10)
    assert running.process.wait(20) == 0
    run = running.snapshot()
    steps = range(1, 201)
    assert bytes(out.text) == b"".join(b"%09d\n" % step * 10_000 for step in steps)
    theirs = [line for line in err.text.splitlines(True) if not line.startswith(b"wtrain: ")]
    assert b"".join(theirs) == b"".join(b"%09d\n" % step * 2_000 for step in steps)
    assert not run.of_type("suspected"), run.describe()
    assert run.only("run_finished")["outcome"] == "succeeded"
    logs = (run.run_dir / "attempts/0001").glob("stdout.log*")
    assert sum(path.stat().st_size for path in logs) < 2_000_000 + 17_000_000


def test_reader_that_goes_away_is_not_waited_for(tmp_path: Path) -> None:
    """`wtrain run ... | head`: the training runs to its end, as wtrain does."""
    script = tmp_path / "much.py"
    script.write_text(MUCH)
    out, err = SlowReader(0.0), SlowReader(0.0)
    running = piped_wtrain(out, err, "--", sys.executable, str(script), cwd=tmp_path)
    err.begin.set()
    running.wait_for("noticed", 60, lambda event: event["kind"] == "reader")
    os.close(out.fd)
    assert running.process.wait(60) == 0
    err.join(10)
    assert running.snapshot().only("run_finished")["outcome"] == "succeeded"


def test_results_of_a_training(tmp_path: Path) -> None:
    """Weights, steps and saved checkpoints are the same with and without us."""
    import torch

    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--step-s", "0")
    code, out, err = alone(command, tmp_path / "alone")
    assert (code, err) == (0, b"")
    cwd = tmp_path / "with"
    run = run_wtrain("run", "--", *command, cwd=cwd).check(0)
    assert run.stdout.encode() == out
    names = sorted(path.name for path in (tmp_path / "alone/checkpoints").iterdir())
    assert names == sorted(path.name for path in (cwd / "checkpoints").iterdir())
    for name in names:
        ours = torch.load(cwd / "checkpoints" / name)
        theirs = torch.load(tmp_path / "alone/checkpoints" / name)
        assert ours["step"] == theirs["step"]
        for key, value in theirs["model"].items():
            assert torch.equal(ours["model"][key], value), (name, key)


def test_environment_of_the_script(tmp_path: Path) -> None:
    """We add variables of our own and one path entry, and take nothing away."""
    script = tmp_path / "environment.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))\n")
    command = [sys.executable, str(script)]
    _, out, _ = alone(command, tmp_path / "alone")
    before = json.loads(out)
    cwd = tmp_path / "with"
    run = run_wtrain("run", "--", *command, cwd=cwd).check(0)
    after = json.loads(run.stdout)
    moved = {"XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "HF_HOME", "PWD"}
    added = {key for key in after if key not in before}
    # The last two turn on torch's Flight Recorder, which a process without ranks never reads.
    known = {"PYTHONPATH", "SPT_NOENV", "TORCHELASTIC_ERROR_FILE"}
    known |= {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}
    assert all(key.startswith("WTRAIN_") or key in known for key in added)
    changed = {key for key in before if after.get(key) != before[key]} - moved
    assert changed <= {"PYTHONPATH", "_"}, {key: after.get(key) for key in changed}
    assert not after["PYTHONPATH"].endswith(":")


@pytest.mark.slow
def test_the_real_cap(tmp_path: Path) -> None:
    """Of 200 MB everything is shown, and the newest, up to 64 MiB, is kept."""
    script = tmp_path / "much.py"
    script.write_text(
        "import sys\n"
        "for i in range(2_000_000):\n"
        "    sys.stdout.write('%012d %s\\n' % (i, 'x' * 86))\n"
    )
    cwd = tmp_path / "with"
    run = run_wtrain("run", "--", sys.executable, str(script), cwd=cwd).check(0)
    shown = cwd / ".command-0.out"
    assert shown.stat().st_size == 2_000_000 * 100
    log = run.run_dir / "attempts/0001/stdout.log"
    kept = log.with_name("stdout.log.1").read_bytes() + log.read_bytes()
    cap = 64 * 1024 * 1024
    assert cap // 2 <= len(kept) <= cap
    with shown.open("rb") as file:
        file.seek(-len(kept), 2)
        assert file.read() == kept
