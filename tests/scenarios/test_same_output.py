"""A script's output, exit code and results are the same with and without us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import program_command, run_wtrain, scenario_environment

pytestmark = [pytest.mark.processes, pytest.mark.scenario]

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
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=cwd)
    run.check(expected_code)
    assert (cwd / ".command-0.out").read_bytes() == expected_out
    lines = (cwd / ".command-0.err").read_bytes().split(b"\n")
    theirs = b"\n".join(line for line in lines if not line.startswith(b"wtrain: "))
    assert expected_err.strip() in theirs, run.describe()
    captured = run.run_dir / "attempts/0001/stdout.log"
    assert captured.read_bytes() == expected_out


@pytest.mark.torch
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
    known = {"PYTHONPATH", "SPT_NOENV", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}
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
