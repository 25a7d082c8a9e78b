"""Whole runs beside a GPU, which a stand-in for NVML plays: no device, no CUDA."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.nvml import ALL_LOST, FULL_W, IDLE_W, OFF_THE_BUS, STUCK_W, Gpus, device, library
from tests.scenarios.checks import assert_log_is_sound, assert_never_killed
from tests.support import (
    FAST_LIMITS,
    MARKER,
    REPOSITORY,
    RunningWtrain,
    changed,
    is_alive,
    marked_processes,
    program_command,
    scenario_environment,
    sentence,
    start_wtrain,
    wait_until,
    write_fast_config,
)
from watchdog_train.system.gpu import in_a_pid_namespace

pytestmark = pytest.mark.skipif(
    in_a_pid_namespace(), reason="in a container the driver's pids are others"
)

SEES = "  gpu: 'on'\n"
SOON = {"learnt_hard_floor_s": 20, "learnt_hard_factor": 20, "learn_after": 5}


SHORT = (sys.executable, str(REPOSITORY / "scripts" / "bench" / "gpu" / "short_limits.py"))
"""wtrain as `scripts/gpu` starts it, with seconds for minutes."""


def start(
    cwd: Path, gpus: Gpus, *args: str, wtrain: tuple[str, ...] = ()
) -> tuple[RunningWtrain, int]:
    """The run, and the pid of its training."""
    config = write_fast_config(cwd, limits=changed(FAST_LIMITS, detection=SOON))
    config.write_text(config.read_text().replace("detection:\n", "detection:\n" + SEES))
    gpus.show(device(), device())
    options = ("--config", str(config), "--resume-arg", "--resume {checkpoint}")
    command = program_command("gpu_rank.py", "--library", str(library()), *args)
    run = start_wtrain("run", *options, "--", *command, cwd=cwd, env=gpus.env, wtrain=wtrain)
    wait_until((cwd / "pid").exists, 60, "the training has begun")
    return run, int(wait_until((cwd / "pid").read_text, 5, "its pid"))


@pytest.mark.timeout(170)
def test_a_rank_that_stands_still_beside_a_gpu(tmp_path: Path) -> None:
    """Asleep beside a GPU at work it is alive, beside an idle one suspected; spinning, reported."""
    gpus = Gpus(tmp_path)
    run, pid = start(tmp_path, gpus, "--sleep-at", "30", "--spin-at", "50")
    gpus.show(device((pid, 20)))
    wait_until((tmp_path / "slept").exists, 60, "it sleeps")
    since = time.monotonic()
    wait_until(lambda: time.monotonic() > since + 7, 20, "twice the limit of a step")
    assert not run.snapshot().of_type("suspected"), run.snapshot().describe()
    gpus.show(device((pid, 20), util=0, watts=IDLE_W))
    run.wait_for("suspected", 30, lambda event: event["basis"] == "quiet")
    spins = device((pid, 20), util=100, watts=STUCK_W)  # a kernel that only waits
    neighbour = os.getpid()  # on a second device, whose use then tells nothing of the job
    gpus.show(device((pid, 20)))
    (tmp_path / "wake").touch()
    wait_until((tmp_path / "spun").exists, 60, "it spins")
    gpus.show(spins, device((pid, 1), (neighbour, 1)))
    run.wait_for("suspected", 60, lambda event: event["basis"] == "device-wait")
    said = run.wait_for("noticed", 30, lambda event: event["kind"] == "busy")
    assert "the GPUs only spin: 100 % utilisation at 22 % of the power" in sentence(said["why"])
    assert "wtrain lacks: GPUs of its own" in sentence(said["why"])
    run.wait_for("evidence_collected", 30)
    gpus.show(device((pid, 20), util=100, watts=FULL_W))  # a long kernel
    run.wait_for("suspected", 30, lambda event: event["basis"] == "hard-budget")
    (tmp_path / "let-go").touch()
    done = run.result(60).check(0)
    assert_log_is_sound(done)
    assert_never_killed(done)
    assert not done.of_type("stall_declared"), done.describe()
    (bundle,) = done.run_dir.glob("**/host.json")
    host = json.loads(bundle.read_text())
    (seen,) = host["gpu"]["uses"].values()
    assert (seen["util"], seen["others"]) == (100, [neighbour])
    assert [str(neighbour) in other for other in host["facts"]["gpu_others"]] == [True]
    waits = json.loads(bundle.with_name("explanation.json").read_text())["root"]["doing"]
    assert (waits["wait"], waits["gpu"]["device"], waits["gpu"]["util"]) == ("device", 0, 100)
    assert (waits["gpu"]["power"], waits["gpu"]["others"]) == (0.217, [neighbour])
    said = bundle.with_name("SUMMARY.md").read_text()
    assert "waits for its GPU in cudaStreamSynchronize, called by stand (gpu_rank.py:" in said
    assert "at 100 % and 22 % of its power limit" in said
    assert "; shared with pid " in said


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_a_kernel_that_never_ends_is_a_stall(tmp_path: Path) -> None:
    """Declared after the limit and five samples, explained, killed, restarted and finished."""
    gpus = Gpus(tmp_path)
    until = ("--sleep-at", "30", "--spin-at", "130", "--steps", "150")
    run, pid = start(tmp_path, gpus, *until, wtrain=(*SHORT, "24", "2"))
    gpus.show(device((pid, 20), watts=FULL_W))
    wait_until((tmp_path / "slept").exists, 60, "it sleeps")
    (tmp_path / "wake").touch()
    wait_until((tmp_path / "spun").exists, 60, "it spins")
    gpus.show(device((pid, 20), util=100, watts=STUCK_W))
    declared = run.wait_for("stall_declared", 60)
    assert (declared["basis"], declared["age_s"] >= 24) == ("device-wait", True)
    gpus.show(device())
    done = run.result(60).check(0)
    assert_log_is_sound(done)
    looks = [event for event in done.of_type("looked") if event.get("device")]
    assert [look["times"] for look in looks] == [1, 2, 3, 4, 5]
    gaps = [after["mono"] - look["mono"] for look, after in pairwise(looks)]
    assert min(gaps) >= 2
    said = done.of_type("stall_explained")[0]["explanation"]["root"]["doing"]
    assert (said["wait"], said["call"], said["gpu"]["util"]) == (
        "device", "cudaStreamSynchronize", 100
    )  # fmt: skip
    assert "waits for its GPU in cudaStreamSynchronize" in done.stderr
    assert "at 100 % and 22 % of its power limit: it runs a kernel that only waits" in done.stderr
    assert len(done.of_type("attempt_launched")) == 2


def asleep(tmp_path: Path) -> tuple[Gpus, RunningWtrain, int]:
    """A run whose rank sleeps, when its use of the GPU has been seen."""
    gpus = Gpus(tmp_path)
    run, pid = start(tmp_path, gpus, "--sleep-at", "30")
    gpus.show(device((pid, 60)))
    wait_until((tmp_path / "slept").exists, 60, "it sleeps")
    (trace,) = tmp_path.glob("wtrain-runs/*-*/**/trace*.jsonl")
    wait_until(lambda: '"gpu":[57.0,' in trace.read_text(), 30, "the GPU was seen")
    return gpus, run, pid


@pytest.mark.timeout(170)
def test_memory_of_the_gpu_after_a_kill(tmp_path: Path) -> None:
    """A restart waits for what is left of the rank, then for a stranger, and goes on when free."""
    gpus, run, pid = asleep(tmp_path)
    other = subprocess.Popen(["sleep", "160"])
    try:
        os.kill(pid, signal.SIGKILL)
        ours = run.wait_for("gpu_memory_held", 60, lambda event: event["ours"])
        assert [each["pid"] for each in ours["ours"]] == [pid]
        gpus.show(device((other.pid, 60)))
        taken = run.wait_for("gpu_memory_held", 60, lambda event: event["others"])
        said = f"another process has taken the GPU memory of the job: pid {other.pid} (sleep, user "
        assert said in sentence(taken["why"])
        assert len(run.snapshot().of_type("attempt_launching")) == 1
        gpus.show(device())
        run.wait_for("gpu_memory_free", 30)
    finally:
        other.kill()
        other.wait(10)
    done = run.result(60).check(0)
    assert [event["attempt"] for event in done.of_type("attempt_launching")] == [1, 2]


@pytest.mark.timeout(170)
def test_a_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """What it showed before is no sign of life; the Xid is the cause, read without root."""
    gpus, run, pid = asleep(tmp_path)
    gpus.show(device((pid, 60), more=(f"xid {OFF_THE_BUS}",)), calls=ALL_LOST)
    found = run.wait_for("stall_explained", 60)["explanation"]["because"]
    assert (found["family"], found["certainty"]) == ("gpu-fault", "proven")
    assert f"(GPU 0): {OFF_THE_BUS}" in found["values"]["line"]
    run.wait_for("attempt_launched", 60, lambda event: event["attempt"] == 2)
    gpus.show(device())
    done = run.result(60).check(0)
    assert_log_is_sound(done)


SCRIPT = REPOSITORY / "scripts" / "gpu"
PARTS = """
import json, subprocess, sys, time
from types import SimpleNamespace as Some

NAMES = {"fails": 30, "late": 2, "answers": 30, "long": 99, "never": 30}
PARTS = {name: Some(limit_s=limit, asks="", beside="") for name, limit in NAMES.items()}
CLAIMS = [
    Some(part="answers", says="seven", agrees=lambda a: a["number"] == 7),
    Some(part="answers", says="eight", agrees=lambda a: a["number"] == 8),
    Some(part="fails", says="nine", agrees=lambda a: a["number"] == 9),
]
if __name__ == "__main__":
    known = {"machine": {"devices": ["one"], "wtrain": "1"}, "answers": {"number": 7}}
    answer = known.get(sys.argv[1], {})
    if sys.argv[1] in ("late", "long"):
        sleep = ["sleep", "600"]
        answer["child"] = subprocess.Popen(sleep, start_new_session=True).pid
    open("answer.json", "w").write(json.dumps(answer))
    if "child" in answer:
        time.sleep(600)
    sys.exit(3 if sys.argv[1] == "fails" else 0)
"""


def script(cwd: Path, *args: str, command: Path = SCRIPT) -> tuple[int, dict[str, Any]]:
    """Exit code of scripts/gpu without a device, and its file."""
    done = subprocess.run(
        [sys.executable, str(command), *args],
        cwd=cwd,
        env=scenario_environment(cwd),
        stdout=subprocess.DEVNULL,
        timeout=560,
        check=False,
    )
    file = cwd / "gpu.json"
    return done.returncode, json.loads(file.read_text()) if file.exists() else {}


def test_the_script_says_that_there_is_no_device(tmp_path: Path) -> None:
    """Each part says so; the code is 0, and 2 where the file cannot be written."""
    code, found = script(tmp_path)
    parts = {name: part for name, part in found.items() if "skipped" in str(part)}
    assert code == 0
    assert len(parts) == 12
    assert all(part == {"skipped": "no CUDA device"} for part in parts.values())
    assert script(tmp_path / ".home", "--out", "no/such/folder.json") == (2, {})


def test_a_part_that_fails_or_hangs_ends_alone(tmp_path: Path) -> None:
    """The next part runs, nobody is left, and the limit of the whole holds."""
    copy = tmp_path / "scripts" / "gpu"
    parts = tmp_path / "scripts" / "bench" / "gpu" / "parts.py"
    parts.parent.mkdir(parents=True)
    parts.write_text(PARTS)
    text = SCRIPT.read_text()
    assert "WHOLE_S = 520.0" in text
    copy.write_text(text.replace("WHOLE_S = 520.0", "WHOLE_S = 12.0"))
    code, found = script(tmp_path, command=copy)
    assert (code, found["answers"]["number"]) == (1, 7)
    assert found["fails"]["problem"] == "ended with 3"
    assert found["late"]["problem"] == "no answer within 2 s"
    assert found["never"]["problem"] == "not begun: the 9 minutes are over"
    assert found["seconds"] < 12 + 10
    assert [claim["seen"] for claim in found["claims"]] == ["agrees", "DIFFERS", "unknown"]
    children = [found[name]["child"] for name in ("late", "long") if "child" in found[name]]
    assert not any(map(is_alive, children))


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_the_parts_of_the_script_work(tmp_path: Path) -> None:
    """On the CPU, beside the stand-in: every part answers, and nothing is left of it."""
    _, found = script(tmp_path, "--dry-run")
    parts = {name: part for name, part in found.items() if isinstance(part, dict)}
    problems = {name: part["problem"] for name, part in parts.items() if "problem" in part}
    # On a loaded machine a part may be late; what it has seen by then must still be right.
    assert all("no answer within" in each for each in problems.values()), problems
    assert found["seconds"] < 540
    right = {
        "waits": lambda part: part["spin"]["state"] == "S",
        "nccl": lambda part: part["gloo-loops"]["codes"] == [None, None],
        "server": lambda part: len(part["gloo"]["recorders"]) == 2,
        "memory": lambda part: part["SIGKILL"]["gone_s"] < 10,
        "item": lambda part: part["suspected_after_s"][0] > 0 and part["explained"],
        "endless": lambda part: part["launched"] == 2 and part["code"] == 0,
        "bound": lambda part: part["launched"] == 1 and not part["stalls"],
        "loader": lambda part: part["suspected_after_s"][0] > 0 and part["explained"],
        "cost": lambda part: part["ratio"] > 0,
        "compile": lambda part: part["launched"] == 1 and not part["false_alarms"],
        "healthy": lambda part: part["launched"] == 1 and not part["false_alarms"],
    }
    for name in right.keys() - problems.keys():
        text = json.dumps(found[name])
        assert name == "nccl" or '"ended"' not in text, text
        assert '"late"' in text or right[name](found[name]), text
    assert found["machine"]["nvml"]["devices"][0]["power_w"] == STUCK_W
    assert marked_processes(os.environ[MARKER]) == {}
