"""Commands that need no run: their answers, their exit codes, and that they change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.checkpoint_samples import torch_zip, write_hf
from tests.support import run_wtrain, scenario_environment

MOVES = """\
def waits_first():
    print("first", flush=True)
    input()

def waits_second():
    print("second", flush=True)
    input()

waits_first()
waits_second()
"""
STATE = b'{"global_step": 10}\n'
REINIT = (
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. "
    "To use CUDA with multiprocessing, you must use the 'spawn' start method\n"
)
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in step
ZeroDivisionError: float division by zero
"""


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_checkpoints_are_judged_and_left_as_they_are(tmp_path: Path) -> None:
    """The newest valid one is named, the cut one has its reason; nothing is unpickled."""
    touch = f"\x80\x02cos\nsystem\n(S'touch {tmp_path}/unpickled'\ntR.".encode("latin-1")
    files = {"optimizer__pt": torch_zip(pickle=touch), "trainer_state__json": STATE}
    valid = write_hf(tmp_path / "out", 10, **files)
    write_hf(tmp_path / "out", 20, optimizer__pt=b"PK\x03\x04 cut")
    before = contents(tmp_path / "out")
    for level in ("quick", "full"):
        command = ("checkpoints", "out", "--level", level, "--json")
        told = run_wtrain(*command, cwd=tmp_path).check().json()
        assert told["newest_whole"] == str(valid)
    words = run_wtrain("checkpoints", "out", cwd=tmp_path).check().stdout
    assert "checkpoint-20" in words
    assert "optimizer.pt" in words
    assert contents(tmp_path / "out") == before
    assert not (tmp_path / "unpickled").exists()


def test_a_dump_of_a_process_ends_nobody(tmp_path: Path) -> None:
    """Of a process that wtrain did not start: its line, and then another one."""
    (tmp_path / "moves.py").write_text(MOVES)
    dumps = []
    with subprocess.Popen(
        [sys.executable, "moves.py"],
        cwd=tmp_path,
        env=scenario_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for word in ("first", "second"):
                assert process.stdout.readline() == f"{word}\n"
                dump = run_wtrain("dump", "--pid", str(process.pid), "--json", cwd=tmp_path)
                dumps.append(dump.check().json()["dir"])
                shown = run_wtrain("show", dumps[-1], cwd=tmp_path).check().stdout
                assert f"waits_{word} (moves.py" in shown
                assert process.poll() is None
                process.stdin.write("\n")
                process.stdin.flush()
            assert process.wait(10) == 0, "a dump ends nobody"
        finally:
            process.kill()


def test_a_log_is_explained(tmp_path: Path) -> None:
    """What is missing is refused."""
    (tmp_path / "train.log").write_text(REINIT)
    told = run_wtrain("diagnose", "train.log", "--json", cwd=tmp_path).check().json()
    assert (told["schema_version"], told["family"]) == (1, "fork-cuda-init")
    assert told["failure"]["fact"]["type"] == "RuntimeError"
    (tmp_path / "train.log").write_text(TRACEBACK)
    shown = run_wtrain("diagnose", "train.log", cwd=tmp_path).check().stdout
    assert shown.startswith("ZeroDivisionError at train.py:7 in step(): float division by zero\n")
    refused = run_wtrain("diagnose", "nothing.log", cwd=tmp_path).check(78)
    assert "evidence-missing" in refused.stderr


def test_a_flag_wins_over_its_variable_and_that_over_the_file(tmp_path: Path) -> None:
    """What `wtrain run` would use; a setting and the remedies are explained by name."""
    (tmp_path / "wtrain.yaml").write_text("recovery: {max_restarts: 3}\n")
    variable = {"WTRAIN_MAX_RESTARTS": "4"}
    for flags, env, used in (
        ((), {}, 3),
        ((), variable, 4),
        (("--max-restarts", "5"), variable, 5),
    ):
        shown = run_wtrain("config", "show", *flags, "--json", cwd=tmp_path, env=env).check().json()
        assert shown["settings"]["recovery.max_restarts"] == used
    run_wtrain("config", "check", cwd=tmp_path).check()
    explained = run_wtrain("config", "explain", "max_restarts", cwd=tmp_path).check().stdout
    assert "default: 5" in explained
    listed = run_wtrain("remedies", "--json", cwd=tmp_path).check().json()["remedies"]
    kinds = {remedy["id"]: remedy["kind"] for remedy in listed}
    assert (kinds["num-workers-0"], kinds["batch-halve-accumulate"]) == ("execution", "training")


def test_doctor_on_this_machine(tmp_path: Path) -> None:
    """Every check has an answer; what failed has a cure, and the exit code says so."""
    args = ("doctor", "--json", "--checkpoints", str(tmp_path / "no"))
    done = run_wtrain(*args, cwd=tmp_path).check(1)
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    checks = {check["name"]: check for check in answer["checks"]}
    assert next(iter(checks)) == "platform"
    assert {"stacks", "orphans", "network", "heartbeats"} <= set(checks)
    assert all(c["mend"] for c in checks.values() if c["status"] in ("failure", "warning"))
