"""Every remedy on a script that is not changed: it takes, it helps, and the ladder reaches it.

Three tables. FACTS: a remedy asked for by --with, and what the training then says about itself, for
each framework. CASES: a training that hangs or crashes without the remedy and finishes with it.
Beyond both: what a whole run makes of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training
from tests.scenarios.checks import last_line
from tests.support import (
    PROGRAMS,
    CompletedRun,
    bin_path,
    program_command,
    run_fast,
    run_program,
    run_wtrain,
    sentence,
    start_wtrain,
    wait_until,
    write_fast_config,
)
from watchdog_train.remedies.catalogue import CATALOGUE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

Facts = dict[str, Any]
Check = Callable[[Facts], bool]


def env(name: str, value: str) -> Check:
    return lambda facts: facts["environment"][name] == value


LOADED: dict[str, Check] = {
    "spawn": lambda facts: facts["start"] == "spawn" and facts["workers"] == 2,
    "loader-timeout": lambda facts: facts["timeout"] == 300,
    "pin-memory-off": lambda facts: facts["pinned"] is False,
    "persistent-workers-off": lambda facts: facts["persistent"] is False,
    "file-system-sharing": lambda facts: facts["sharing"] == "file_system",
    "num-proc-none": lambda facts: facts["map_in_process"] is True,
    "omp-1": lambda facts: facts["threads"] == 1 and env("OMP_NUM_THREADS", "1")(facts),
    "tokenizers-off": env("TOKENIZERS_PARALLELISM", "false"),
    "hf-offline": env("HF_HUB_OFFLINE", "1"),
    "hub-timeouts": env("HF_HUB_ETAG_TIMEOUT", "30"),
    "xet-off": env("HF_HUB_DISABLE_XET", "1"),
    "no-compile": env("TORCH_COMPILE_DISABLE", "1"),
    "compile-threads-1": env("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    "nccl-p2p-off": env("NCCL_P2P_DISABLE", "1"),
    "nccl-ib-off": env("NCCL_IB_DISABLE", "1"),
    "nccl-socket-ifname": lambda facts: facts["environment"]["NCCL_SOCKET_IFNAME"][:3] == "^lo",
    "allocator-expandable": env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    "launch-blocking": env("CUDA_LAUNCH_BLOCKING", "1"),
}
"""Settings that can be in effect together, in every framework."""

FRAMEWORKS = ("plain", "trainer", "lightning", "accelerate")
"""plain: a loop over torch; trainer: the Trainer of transformers and what derives from it."""
ALONE: dict[str, Check] = {
    "num-workers-0": lambda facts: facts["workers"] == 0,
    "debug-detail": env("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
}
RANKS: dict[str, Check] = {
    "raise-ddp-timeout": lambda facts: facts["group_timeout_s"] == 7200,
    "num-workers-0": lambda facts: facts["workers"] == 0,
    "omp-1": lambda facts: facts["threads"] == 1,
    "num-proc-none": lambda facts: facts["map_in_process"] is True,
}
"""Under torchrun, on both ranks."""


CANNOT = {"num-proc-none"} if find_spec("datasets") is None else set()


def asked(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--with", name)]


def facts_of(run: CompletedRun) -> list[Facts]:
    lines = [line[6:] for line in run.stdout.splitlines() if line.startswith("facts ")]
    assert lines, run.describe()
    return [json.loads(line) for line in lines]


def check_facts(run: CompletedRun, checks: dict[str, Check], ranks: int = 1) -> None:
    """Every remedy is in the plan, says that it took, and is seen by the training itself."""
    checks = {name: check for name, check in checks.items() if name not in CANNOT}
    told = {event["remedy"]: event for event in run.of_type("remedy_taken")}
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    found = facts_of(run)
    assert len(found) == ranks, run.describe()
    for name, check in checks.items():
        assert told.get(name, {}).get("took") is True, f"{name}: {told.get(name)}\n{run.describe()}"
        for facts in found:
            assert check(facts), f"{name}: {facts}"


def with_remedies(
    tmp_path: Path, names: list[str], *command: str, timeout_s: float = 200
) -> CompletedRun:
    return run_wtrain(
        "run", *asked(names), "--", *command, cwd=tmp_path, timeout_s=timeout_s,
        env={"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "0"},
    ).check(0)  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_take_and_are_seen(framework: str, tmp_path: Path) -> None:
    """All settings of loading, threads and variables at once; workers are spawned."""
    command = program_command("framework_facts.py", framework)
    check_facts(with_remedies(tmp_path, list(LOADED), *command), LOADED)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_changes_the_training_takes_and_is_seen(framework: str, tmp_path: Path) -> None:
    """Workers removed, and the batch of a Trainer halved; workers were forked."""
    checks = dict(ALONE)
    if framework == "trainer":
        checks["batch-halve-accumulate"] = lambda facts: (
            (facts["batch"], facts["accumulation"], facts["step"]) == (4, 2, 6)
        )
    command = program_command("framework_facts.py", framework)
    check_facts(with_remedies(tmp_path, list(checks), *command), checks)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_take_on_every_rank(framework: str, tmp_path: Path) -> None:
    """Under torchrun: on both ranks, with a group whose timeout the framework has chosen."""
    torchrun = [str(bin_path("torchrun")), "--nproc-per-node", "2"]
    command = [*torchrun, str(PROGRAMS / "framework_facts.py"), framework]
    run = with_remedies(tmp_path, list(RANKS), *command, timeout_s=260)
    check_facts(run, RANKS, ranks=2)


@pytest.mark.parametrize("preset", ["apple-silicon", "windows"])
@pytest.mark.parametrize("framework", ["plain", "trainer"])
def test_a_preset_of_another_platform_works_here(
    preset: str, framework: str, tmp_path: Path
) -> None:
    """One thread, no parallel tokenizers, no workers; on a Mac the CPU, on Windows spawn."""
    of_platform = {"apple-silicon": "cpu-not-mps", "windows": "spawn"}[preset]
    checks: dict[str, Check] = {
        "num-workers-0": lambda facts: facts["workers"] == 0,
        "omp-1": lambda facts: facts["threads"] == 1 and env("OMP_NUM_THREADS", "1")(facts),
        "tokenizers-off": env("TOKENIZERS_PARALLELISM", "false"),
        of_platform: lambda _: True,
    }
    command = program_command("framework_facts.py", framework)
    run = run_wtrain("run", "--preset", preset, "--", *command, cwd=tmp_path, timeout_s=200)
    check_facts(run.check(0), checks)


# -- One training for each remedy ------------------------------------------------------------------

HANGS, CRASHES = "hangs", "crashes"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "num-workers-0": (HANGS, {}),
    "spawn": (HANGS, {}),
    "persistent-workers-off": (HANGS, {}),
    "pin-memory-off": (CRASHES, {}),
    "file-system-sharing": (CRASHES, {}),
    "num-proc-none": (CRASHES, {}),
    "tokenizers-off": (HANGS, {}),
    "hf-offline": (HANGS, {}),
    "hub-timeouts": (
        HANGS,
        {"variables": {"HF_HUB_ETAG_TIMEOUT": "2", "HF_HUB_DOWNLOAD_TIMEOUT": "2"}},
    ),
    "xet-off": (HANGS, {}),
    "safetensors-off": (CRASHES, {}),
    "omp-1": (HANGS, {}),
    "wandb-offline": (HANGS, {}),
    "no-compile": (HANGS, {}),
    "compile-threads-1": (HANGS, {}),
    "batch-halve-accumulate": (CRASHES, {}),
}
"""What the training of tests/programs/remedy_cases.py does without the remedy, and parameters that
make it short. The others have tests of their own below."""

OWN_TEST = {
    "loader-timeout": "test_a_silent_worker_becomes_an_error",
    "clear-stale-lock": "test_a_lock_of_a_dead_process_of_this_run_is_removed",
    "raise-ddp-timeout": "test_a_slow_rank_0_is_waited_for",
    "tokenizers-slow": "test_a_tokenizer_is_slow_where_transformers_has_one",
    "stagger-start": "test_ranks_of_a_machine_start_one_after_the_other",
    "celery-solo": "test_a_celery_worker_trains_in_its_own_process",
    "num-workers-1": "test_bisect.py::test_what_a_hang_needs_is_found",
    "skip-bad-batches": "test_bad_batches.py::test_bad_batches_are_skipped",
    "cpu": "test_devices_and_memory.py::test_a_training_that_asks_for_a_gpu_runs_on_the_cpu",
    "memory-relief": "test_devices_and_memory.py::test_memory_that_nobody_collects_is_freed",
    "mps-fallback": "test_devices_and_memory.py::test_mps_fallback_reaches_the_training",
    "cpu-not-mps": "test_a_setting_of_a_mac_reaches_the_training",
}
ONLY_ARRIVES = (
    "nccl-p2p-off", "nccl-ib-off", "nccl-socket-ifname", "allocator-expandable", "debug-detail",
    "launch-blocking",
)  # fmt: skip
"""Variables for what only a GPU or a fault of the network can show: they reach the training."""

ELSEWHERE = ("no-eval", "eval-batch", "shorter-sequences", "subset")
"""Shown in test_changed_trainings.py."""

QUIET_S = 12.0
"""A case that has not finished by then hangs; with its setting it is done in a few seconds."""


def case_environment(tmp_path: Path) -> dict[str, str]:
    return {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_ETAG_TIMEOUT": "100000",
        "HF_HUB_DOWNLOAD_TIMEOUT": "100000",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONUNBUFFERED": "1",
    }


def start_case(
    training: Training, name: str, remedy: str | None = None, **more: Any
) -> subprocess.Popen[str]:
    """A case as an attempt would run it, with the settings of a plan."""
    extra = case_environment(training.root) | more.pop("env", {})
    if remedy is not None:
        spec = CATALOGUE[remedy]
        entry = {**(spec.in_process or {}), **more}
        variables = entry.pop("variables", {})
        if variables:
            entry["env"] = {**entry["env"], **variables}
        extra |= spec.env | variables
        training.settings = [entry]
    environment = training.environment(extra)
    fakes = str(PROGRAMS / "fakes")
    environment["PYTHONPATH"] += os.pathsep + fakes
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / "remedy_cases.py"), name],
        cwd=training.root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float) -> tuple[int | None, str]:
    """Exit code, None when it had to be killed, and output."""
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, _ = process.communicate()
        return None, out
    return process.returncode, out


def answers_of(training: Training, name: str) -> list[Facts]:
    """What its processes have said of a setting."""
    return [note["settings"][name] for note in training.all_notes() if name in note["settings"]]


def fresh(path: Path) -> Training:
    path.mkdir()
    return Training(path)


@pytest.mark.parametrize("name", CASES)
def test_a_training_that_needs_it(name: str, tmp_path: Path) -> None:
    """Without the remedy it hangs or crashes, with it the same script finishes and says why."""
    if name in CANNOT:
        pytest.skip("datasets is not installed")
    does, parameters = CASES[name]
    code, out = finish(
        start_case(fresh(tmp_path / "without"), name), QUIET_S * (1 + (does == CRASHES) * 4)
    )
    assert f"finished {name}" not in out, out
    assert (code is None) == (does == HANGS), f"{code}\n{out}"
    training = fresh(tmp_path / "with")
    code, out = finish(start_case(training, name, name, **parameters), 90)
    assert code == 0, out
    assert f"finished {name}" in out, out
    answers = answers_of(training, name)
    assert any(answer["took"] for answer in answers), answers


def test_a_silent_worker_becomes_an_error(tmp_path: Path) -> None:
    """loader-timeout mends nothing: it ends the attempt by an error that names the loader."""
    code, out = finish(start_case(fresh(tmp_path / "without"), "loader-timeout"), QUIET_S)
    assert code is None, out
    training = fresh(tmp_path / "with")
    code, out = finish(start_case(training, "loader-timeout", "loader-timeout", seconds=2), 60)
    assert code == 1, out
    assert "DataLoader timed out after 2" in out
    answers = answers_of(training, "loader-timeout")
    assert any(answer["took"] for answer in answers), answers


@pytest.mark.parametrize("name", ["clear-stale-lock", "soft-lock"])
def test_a_lock_of_a_dead_process_of_this_run_is_removed(name: str, tmp_path: Path) -> None:
    """The killed builder's lock holds the next attempt; only with the remedy is it removed."""
    training = fresh(tmp_path / "run")
    code, _ = finish(start_case(training, name), 60)
    assert code == -9
    if name == "clear-stale-lock":  # filelock removes one that names a dead process by itself
        code, out = finish(start_case(training, name), QUIET_S)
        assert code is None, out
    code, out = finish(start_case(training, name, "clear-stale-lock"), 60)
    assert code == 0, out
    answers = answers_of(training, "clear-stale-lock")
    assert any(answer["took"] and "gone" in answer["why"] for answer in answers), answers


def test_a_lock_of_somebody_else_stays(tmp_path: Path) -> None:
    """A lock that no process of this run has recorded may be held on another machine."""
    training = fresh(tmp_path / "run")
    (training.root / "lock").touch()
    (training.root / "begun").touch()
    code, out = finish(start_case(training, "clear-stale-lock", "clear-stale-lock"), QUIET_S)
    assert code is None, out
    assert (training.root / "lock").exists()
    (note,) = training.all_notes()
    assert note["settings"]["clear-stale-lock"]["took"] is False
    assert "left alone" in note["settings"]["clear-stale-lock"]["why"]


def torchrun_case(name: str) -> list[str]:
    program = str(PROGRAMS / "remedy_cases.py")
    return [str(bin_path("torchrun")), "--nproc-per-node", "2", program, name]


def test_a_slow_rank_0_is_waited_for(tmp_path: Path) -> None:
    """A group that waits 2 s ends by a timeout; asked to wait for hours it finishes."""
    command = torchrun_case("raise-ddp-timeout")
    alone = run_wtrain("run", "--max-restarts", "0", "--", *command, cwd=tmp_path / "alone")
    assert alone.returncode != 0, alone.describe()
    run = with_remedies(tmp_path / "with", ["raise-ddp-timeout"], *command)
    assert "finished raise-ddp-timeout" in run.stdout
    said = run.only("remedy_taken")
    assert said["took"], said
    assert sentence(said["why"]) == "timeout 0:00:02 -> 2:00:00"


def test_ranks_of_a_machine_start_one_after_the_other(tmp_path: Path) -> None:
    """Rank 1 finds the folder that rank 0 has made, instead of making it, too."""
    command = torchrun_case("stagger-start")
    alone = run_wtrain("run", "--max-restarts", "0", "--", *command, cwd=tmp_path / "alone")
    assert "FileExistsError" in alone.stderr + alone.stdout, alone.describe()
    assert alone.returncode != 0
    run = with_remedies(tmp_path / "with", ["stagger-start"], *command)
    assert run.stdout.count("finished stagger-start") == 2, run.describe()
    assert run.only("remedy_taken")["took"], run.describe()
    lines = run_wtrain("logs", "--milestones", cwd=tmp_path / "with").stdout.splitlines()
    (waited,) = [line for line in lines if "wait for the start of local rank 1, took " in line]
    assert "[R1/2][LR1]" in waited


@pytest.mark.parametrize("remedy", [None, "celery-solo"])
def test_a_celery_worker_trains_in_its_own_process(remedy: str | None, tmp_path: Path) -> None:
    """A pool hangs: its process waits for threads of the worker. In the worker itself it ends."""
    pytest.importorskip("celery")
    worker = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", "prefork"]
    run = start_wtrain(
        "run", "--config", str(write_fast_config(tmp_path)), "--on-stall", "stop",
        *asked([remedy] if remedy else []), "--", *worker, "-c", "2", "--loglevel", "info",
        cwd=tmp_path, env={"PYTHONPATH": str(PROGRAMS), "WARM": "1", "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    wait_until(lambda: " ready." in run.stderr, 90, "the worker is ready")
    send = [sys.executable, str(PROGRAMS / "celery_tasks.py"), "compute"]
    subprocess.run(send, cwd=tmp_path, env=run.env, check=True, timeout=90)
    if remedy is None:
        done = run.result(120).check(75)
        return
    wait_until(lambda: "succeeded in" in run.stderr, 90, "the task is done")
    run_wtrain("stop", cwd=tmp_path, timeout_s=60).check(0)
    done = run.result(60)
    assert "mingle: " not in done.stderr, done.describe()
    told = done.only("remedy_taken")
    assert told["took"], told
    assert sentence(told["why"]) == "pool prefork -> solo, without gossip and mingle"


def test_a_tokenizer_is_slow_where_transformers_has_one(tmp_path: Path) -> None:
    """Transformers 4 has both kinds; 5 has the fast ones only, and that is said."""
    has_slow = int(version("transformers").split(".", maxsplit=1)[0]) < 5
    code, out = finish(start_case(fresh(tmp_path / "without"), "tokenizers-slow"), 60)
    assert (code, "tokenizer is fast" in out) == (0, True), out
    training = fresh(tmp_path / "with")
    code, out = finish(start_case(training, "tokenizers-slow", "tokenizers-slow"), 60)
    assert (code, "tokenizer is slow" in out) == (0, has_slow), out
    answers = answers_of(training, "tokenizers-slow")
    assert [answer["took"] for answer in answers] == [has_slow], answers


def test_what_finds_nothing_to_change_says_so(tmp_path: Path) -> None:
    """One process, no worker, weights of safetensors only: the training goes on as it is."""
    names = ["stagger-start", "celery-solo", "safetensors-off", "tokenizers-slow"]
    command = program_command("remedy_cases.py", "safetensors-off", "--only")
    run = with_remedies(tmp_path, names, *command)
    told = {event["remedy"]: event["took"] for event in run.of_type("remedy_taken")}
    assert told == dict.fromkeys(names, False), run.describe()
    assert "finished safetensors-off" in run.stdout


def test_a_setting_of_a_mac_reaches_the_training(tmp_path: Path) -> None:
    """Simulated: no Mac is here, so only that the setting arrives and is reported back."""
    training = fresh(tmp_path / "mac")
    spec = CATALOGUE["cpu-not-mps"]
    training.settings = [spec.in_process or {}]
    script = (
        "import torch\n"
        "weight = torch.nn.Parameter(torch.zeros(1))\n"
        "torch.optim.SGD([weight]).step()\n"
        "print(torch.backends.mps.is_available())\n"
    )
    done = training.run(script, env=spec.env)
    assert done.stdout.split()[0] == "False", done.stderr
    assert training.note()["settings"]["cpu-not-mps"]["took"] is True


# -- What a run makes of it ------------------------------------------------------------------------


def remedies_of(run: CompletedRun) -> list[list[str]]:
    """The remedies of every attempt, in order."""
    return [
        [use["id"] for use in event["plan"]["remedies"]]
        for event in run.of_type("attempt_launching")
    ]


@pytest.mark.skipif("num-proc-none" in CANNOT, reason="datasets is not installed")
def test_a_gpu_after_a_fork_reaches_num_proc_none(tmp_path: Path) -> None:
    """`Cannot re-initialize CUDA` out of datasets.map: the first restart maps in the main process.

    Simulated: the forked process says what CUDA would say.
    """
    run = run_program(tmp_path, "remedy_cases.py", "num-proc-none", timeout_s=160).check(0)
    assert remedies_of(run) == [[], ["num-proc-none"]], run.describe()
    assert run.of_type("stall_explained")[0]["explanation"]["because"]["family"] == "fork-cuda-init"
    told = run.only("remedy_taken")
    assert told["took"], told
    assert sentence(told["why"]) == "num_proc 2 -> None"
    assert "finished num-proc-none" in run.stdout
    report = run_wtrain("report", cwd=tmp_path)
    assert "dataset.map(..., num_proc=None, writer_batch_size=100)" in report.stdout
    assert "--with num-proc-none" in report.stdout


def test_the_second_and_the_third_remedy_get_their_turn(tmp_path: Path) -> None:
    """What the diagnosis names is tried one after the other, in its order, within the restarts."""
    run = run_program(tmp_path, "remedy_turns.py", "third", timeout_s=280).check(0)
    tried = remedies_of(run)
    assert tried[0] == [], run.describe()
    found = run.of_type("stall_explained")[0]["explanation"]
    named = [remedy["name"] for remedy in found["remedies"]]
    for number, plan in enumerate(tried[1:], start=1):
        assert plan[:number] == named[:number], run.describe()
    assert len(tried) == 4, run.describe()


def test_a_remedy_that_made_it_worse_is_taken_back(tmp_path: Path) -> None:
    """With it the training crashes before its first step, so the next attempt is without it."""
    run = run_program(tmp_path, "remedy_turns.py", "worse", timeout_s=280).check(0)
    tried = remedies_of(run)
    assert "num-workers-0" in tried[1], run.describe()
    assert "num-workers-0" not in tried[2], run.describe()
    assert "taking back num-workers-0" in sentence(run.of_type("plan_made")[2]["plan"]["why"])


def test_giving_up_prints_how_to_go_on(tmp_path: Path) -> None:
    """The training's own code, and the very line that allows what the diagnosis names; it works."""
    command = program_command("remedy_cases.py", "batch-halve-accumulate")
    run = run_fast(tmp_path, command, "--without", "allocator-expandable", timeout_s=160).check(1)
    line = last_line(run.stderr, "wtrain: to continue: ").removeprefix("wtrain: to continue: ")
    wanted = "--with batch-halve-accumulate --allow batch-halve-accumulate"
    assert line == f"wtrain restart {run.events[0]['run_id']} {wanted}", run.describe()
    again = run_wtrain(*line.split()[1:], cwd=tmp_path, timeout_s=100).check(0)
    told = again.of_type("remedy_taken")[-1]
    assert told["took"], told
    assert sentence(told["why"]) == "batch 4 -> 2, accumulation 1 -> 2, evaluation 4 -> 2"
    assert "finished batch-halve-accumulate" in again.stdout


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_one_experiment_stays_one_run_of_wandb(tmp_path: Path) -> None:
    """Two attempts of a training that logs offline write into runs of one id; two folds do not."""
    command = program_command("logs_to_wandb.py")
    run = run_fast(tmp_path, command, timeout_s=160, env={"WANDB_MODE": "offline"}).check(0)
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    ids = [line.split("=")[1] for line in run.stdout.splitlines() if line.startswith("id=")]
    folds = [line.split("=")[1] for line in run.stdout.splitlines() if line.startswith("fold=")]
    assert len(ids) == 2, run.describe()
    assert ids[0] == ids[1], ids
    name = run.events[0]["run_id"].replace("_", "-")  # wandb allows no underscore in an id
    assert ids[0].startswith(name[:20]), (ids, name)
    assert len(set(folds)) == len(folds) >= 3, folds
