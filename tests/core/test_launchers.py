"""Which launcher a command starts, what its user has settled, and what an attempt sets for it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import RUN_STARTED, fold, plan
from watchdog_train.client.roles import is_launcher
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import plans
from watchdog_train.core.recovery.ladder import first_plan
from watchdog_train.core.starting.command_line import find, starts_ranks
from watchdog_train.core.starting.launchers import Launcher, describe, environment, rank_streams
from watchdog_train.report.summary import opening_lines
from watchdog_train.supervisor.job_task import CONFIG_CAP_BYTES, launcher_of

SHARE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
OWN = {
    SHARE: "1",
    "PET_LOCAL_ADDR": "127.0.0.1",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "localhost:0",
    "PET_RDZV_ID": "run-2",
    "PET_LOG_DIR": "/r/attempts/0002/torchrun",
}


def variables(command: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """What the second attempt of a run with this command gets."""
    launcher = launcher_of(shlex.split(command), env or {}, "/")
    return environment(launcher, run_id="run", attempt=2, attempt_dir="/r/attempts/0002")


# -- finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "family", "options"),
    [
        ("torchrun train.py", "torchrun", {}),
        ("/venv/bin/torchrun --nproc-per-node 2 train.py --tee 3", "torchrun", "nproc-per-node=2"),
        ("torchrun --nproc_per_node=2 train.py", "torchrun", "nproc-per-node=2"),
        ("torchrun --nproc 4 -m pkg.train", "torchrun", "nproc-per-node=4 module="),
        ("torchrun --standalone -r3 -t 1 --no-python ./x", "torchrun",
         "standalone= redirects=3 tee=1 no-python="),
        ("python -m torch.distributed.run --nnodes=1:4 train.py", "torchrun", "nnodes=1:4"),
        ("python3.11 -um torch.distributed.launch --use_env train.py", "torchrun", "use-env="),
        ("python -X importtime -W ignore -m torch.distributed.run t.py", "torchrun", {}),
        ("python /v/site-packages/torch/distributed/run.py --nproc-per-node=2 t.py", "torchrun",
         "nproc-per-node=2"),
        ("python /venv/bin/torchrun --nproc-per-node=gpu t.py", "torchrun", "nproc-per-node=gpu"),
        ("uv run torchrun train.py", "torchrun", {}),
        ("uv run --with x -m torch.distributed.run t.py", "torchrun", {}),
        ("conda run -n env --no-capture-output python -m torch.distributed.run t.py", "torchrun",
         {}),
        ("nice -n 5 numactl -N 0 torchrun --role trainer t.py", "torchrun", "role=trainer"),
        ("bash -c 'torchrun --nproc-per-node=2 t.py'", "torchrun", "nproc-per-node=2"),
        ("bash -o pipefail -lc 'cd x && torchrun --standalone t.py 2>&1 | tee log'", "torchrun",
         "standalone="),
        ("sh -c 'uv run bash -c \"torchrun t.py\"'", "torchrun", {}),
        ("torchrun --standalone t.py bash -c 'torchrun --tee 3 u.py'", "torchrun", "standalone="),
        ("bash -c 'torchrun a.py; torchrun --master-port=1 b.py'", "torchrun", "master-port=1"),
        ("accelerate launch train.py", "accelerate", {}),
        ("accelerate launch --num_processes 2 --multi_gpu train.py --cpu", "accelerate",
         "num-processes=2 multi-gpu="),
        ("accelerate-launch --num-processes=2 -m pkg.train", "accelerate",
         "num-processes=2 module="),
        ("python -m accelerate.commands.launch --cpu t.py", "accelerate", "cpu="),
        ("python -m accelerate.commands.accelerate_cli launch t.py", "accelerate", {}),
        ("C:\\venv\\Scripts\\torchrun.exe t.py".replace("\\", "\\\\"), "torchrun", {}),
    ],
)  # fmt: skip
def test_launchers_are_found(command: str, family: str, options: str | dict[str, str]) -> None:
    found = find(shlex.split(command))
    assert found.family == family
    pairs = [word.partition("=") for word in options.split()] if options else []
    assert found.options == {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python train.py torchrun",
        "python train.py bash -c 'torchrun t.py'",
        "python train.py --launcher torchrun",
        "python -c 'import x' torchrun",
        "python -m pytest torchrun",
        "python",
        "python -m",
        "accelerate config",
        "accelerate",
        "python -m accelerate.commands.accelerate_cli config",
        "bash run.sh",
        "bash -c 'echo \"torchrun'",
        "bash",
        "deepspeed train.py",
        "my-torchrun train.py",
    ],
)
def test_other_commands_are_none(command: str) -> None:
    """A word of a script's arguments is no launcher."""
    assert find(shlex.split(command)) is None
    assert variables(command) == {}


def test_no_command_is_no_launcher() -> None:
    assert find(()) is None
    assert not starts_ranks(())


@given(st.lists(st.text(max_size=20) | st.sampled_from(["bash", "-c", "torchrun", "-m"])))
def test_any_words_are_answered(words: list[str]) -> None:
    found = find(words)
    starts_ranks(words)
    if found is not None:
        describe(found, {}, None)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/venv/bin/python /venv/bin/torchrun t.py", True),
        ("python -m torch.distributed.run t.py", True),
        ("python /venv/bin/accelerate launch t.py", True),
        ("python /venv/bin/deepspeed t.py", True),
        ("torchrun t.py", True),
        ("bash -c 'torchrun t.py'", False),
        ("uv run torchrun t.py", False),
        ("python train.py --name torchrun", False),
        ("python -m my.torchrun", False),
    ],
)
def test_a_process_that_is_a_launcher(command: str, expected: bool) -> None:
    """The process itself, not a shell around it and not a script that mentions one."""
    assert starts_ranks(shlex.split(command)) is expected


PYTHON_WORDS = (
    "-m", "-um", "-c", "-u", "-X", "-Wignore", "-W", "dev", "--check", "torchrun", "accelerate",
    "/v/bin/torchrun", "C:\\\\v\\\\torchrun.exe", "torch.distributed.run", "train.py", "launch",
    "/v/torch/distributed/run.py", "deepspeed", "deepspeed.launcher.launch",
)  # fmt: skip


@given(st.lists(st.sampled_from(PYTHON_WORDS), max_size=6))
def test_the_client_and_the_supervisor_agree(words: list[str]) -> None:
    """A process calls itself a launcher exactly when the supervisor would, by the same names."""
    command = ["/usr/bin/python3", *words]
    assert is_launcher(command) == starts_ranks(command)


# -- what an attempt sets ------------------------------------------------------------------------


MEETING = ("LOCAL_ADDR", "RDZV_BACKEND", "RDZV_ENDPOINT")


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        ("torchrun train.py", ()),
        ("torchrun --nproc-per-node=2 --max-restarts 3 train.py --standalone", ()),
        ("torchrun --nnodes=1 --node-rank 0 train.py", ()),
        ("torchrun --standalone t.py", (*MEETING, "RDZV_ID")),
        ("torchrun --master-port 29501 t.py", MEETING),
        ("torchrun --master_addr=host t.py", MEETING),
        ("torchrun --rdzv-id 7 t.py", ("RDZV_ID",)),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint localhost:29400 t.py", MEETING),
        ("torchrun --tee 3 t.py", ("LOG_DIR",)),
        ("torchrun --log-dir logs t.py", ("LOG_DIR",)),
        ("torchrun --redirects=0:3 t.py", ("LOG_DIR",)),
        ("env PET_TEE=3 torchrun t.py", ("LOG_DIR",)),
        ("bash -c 'export PET_MASTER_PORT=1; torchrun t.py'", MEETING),
        ("torchrun --nnodes=2 --rdzv-id 7 t.py", (*MEETING, "RDZV_ID")),
        ("torchrun --nnodes 1:4 t.py", (*MEETING, "RDZV_ID")),
        ("bash -c 'torchrun --nnodes=$N t.py'", (*MEETING, "RDZV_ID")),
    ],
)  # fmt: skip
def test_torchrun_gets_what_its_user_left_open(command: str, lacking: tuple[str, ...]) -> None:
    """A fresh id and port for each attempt, but nothing that was said, and nothing over nodes."""
    without = {f"PET_{name}" for name in lacking}
    assert variables(command) == {key: OWN[key] for key in OWN if key not in without}


@pytest.mark.parametrize(
    ("env", "lacking"),
    [
        ({SHARE: "0"}, {SHARE}),
        ({"PET_RDZV_ID": "x"}, {"PET_RDZV_ID"}),
        ({"PET_LOG_DIR": "x"}, {"PET_LOG_DIR"}),
        ({"PET_STANDALONE": "0"}, set()),
        ({"PET_STANDALONE": "1"}, {key for key in OWN if key not in (SHARE, "PET_LOG_DIR")}),
        ({"PET_NNODES": "2"}, {key for key in OWN if key not in (SHARE, "PET_LOG_DIR")}),
    ],
)
def test_the_users_environment_is_kept(env: dict[str, str], lacking: set[str]) -> None:
    """A variable that is there says the same as the option."""
    assert variables("torchrun t.py", env) == {k: v for k, v in OWN.items() if k not in lacking}


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1
# Not: torchrun --nnodes=4 train.py
export OMP_NUM_THREADS=4   # one a core: torchrun --tee 3
torchrun \\
    --nproc-per-node=2 \\
    train.py "$@" 2>&1 | tee log.txt
"""


@pytest.mark.parametrize(
    "command", ["bash run.sh", "uv run bash -e run.sh", "nice bash -o pipefail run.sh --lr 1"]
)
def test_a_shell_script_is_read(tmp_path: Path, command: str) -> None:
    """Its torchrun gets what torchrun in the command gets; comments start nothing."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    launcher = launcher_of(shlex.split(command), {}, str(tmp_path))
    assert (launcher.nodes, launcher.processes, launcher.settled) == (1, 2, ())


@pytest.mark.parametrize(
    "line",
    ["torchrun $ARGS train.py", 'torchrun --nproc-per-node=2 "${OPTIONS[@]}" train.py',
     "torchrun `cat options` train.py", "torchrun $(cat options) train.py",
     "accelerate launch $ARGS train.py", "torchrun $SCRIPT"],
)  # fmt: skip
def test_options_that_only_the_shell_knows_settle_everything(tmp_path: Path, line: str) -> None:
    """They may ask for two nodes: then a rendezvous of our own would end the job."""
    (tmp_path / "run.sh").write_text(line)
    launcher = launcher_of(["bash", "run.sh"], {}, str(tmp_path))
    set_by_us = environment(launcher, run_id="run", attempt=2, attempt_dir="/r")
    assert set_by_us == {SHARE: "1"}
    assert rank_streams(launcher) == 0
    assert variables(shlex.join(["bash", "-c", line])) == {SHARE: "1"}


@pytest.mark.parametrize(
    "command",
    ["bash run.sh", "bash -c 'echo' run.sh", "bash -s run.sh", "bash", "python run.sh",
     "bash missing.sh", "bash .", "bash -o"],
)  # fmt: skip
def test_a_script_that_starts_no_launcher_or_cannot_be_read(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text("python train.py\n" if command == "bash run.sh" else SCRIPT)
    assert launcher_of(shlex.split(command), {}, str(tmp_path)) is None


def test_accelerate_gets_a_place_of_its_own() -> None:
    """It hands its own log directory to torchrun, and has no option for the id."""
    alone = {SHARE: "1", "PET_LOCAL_ADDR": "127.0.0.1", "PET_STANDALONE": "1"}
    assert variables("accelerate launch --num_processes 2 t.py") == alone
    fixed = variables("accelerate launch --main_process_port 29501 t.py")
    assert fixed == {SHARE: "1", "PET_RDZV_ID": "run-2"}
    assert variables("accelerate launch --num_machines 2 t.py") == {SHARE: "1"}


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 8\n", {"PET_STANDALONE": "1"}),
        ("num_machines: 2\nmachine_rank: 1\n", {}),
        ("main_process_port: 29501\nnum_machines: 1\n", {"PET_RDZV_ID": "run-2"}),
        (json.dumps({"num_machines": 1}), {"PET_STANDALONE": "1"}),
        ("compute_environment: AMAZON_SAGEMAKER\n", {}),
        ("num_machines: [", {}),
        ("- 1\n", {}),
        ("a: " + "x" * CONFIG_CAP_BYTES, {}),
        ("!!python/object/apply:os.system ['true']", {}),
        ("[" * 5000, {}),
    ],
)
def test_accelerates_config_file(tmp_path: Path, text: str, env: dict[str, str]) -> None:
    """Its defaults count; a file that cannot be read tells nothing, so nothing is set for it."""
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "default_config.yaml").write_text(text)
    home = {"HF_HOME": str(tmp_path)}
    got = variables("accelerate launch t.py", home)
    extra = {"PET_LOCAL_ADDR": "127.0.0.1"} if "PET_STANDALONE" in env else {}
    assert got == {SHARE: "1", **env, **extra}
    named = variables(f"accelerate launch --config_file {folder}/default_config.yaml t.py")
    assert named == got


def test_accelerates_config_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that is named must be there; the default one need not."""
    assert variables(f"accelerate launch --config_file {tmp_path}/x.yaml t.py") == {SHARE: "1"}
    home = {"HF_HOME": str(tmp_path)}
    assert "PET_STANDALONE" in variables("accelerate launch t.py", home)


def test_accelerate_options_win_over_its_file(tmp_path: Path) -> None:
    """As in accelerate itself; with --cpu it does not read its default file at all."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text("num_machines: 2\nnum_processes: 8\n")
    home = {"HF_HOME": str(tmp_path)}
    one = launcher_of(shlex.split("accelerate launch --num_machines 1 t.py"), home, "/")
    assert one == Launcher(family="accelerate", nodes=1, processes=8, settled=("logs",))
    assert "PET_STANDALONE" in variables("accelerate launch --cpu t.py", home)
    assert variables("accelerate launch t.py", home) == {SHARE: "1"}


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        ("torchrun t.py", 1),
        ("torchrun --nproc-per-node 8 t.py", 8),
        ("torchrun --nproc-per-node gpu t.py", 16),
        ("torchrun --nproc-per-node 500 t.py", 64),
        ("torchrun --nproc-per-node 0 t.py", 16),
        ("torchrun --nproc-per-node 2 --log-dir x t.py", 2),
        ("torchrun --nproc-per-node 2 --tee 3 t.py", 0),
        ("torchrun --nnodes 2 t.py", 0),
        ("accelerate launch --num_processes 4 t.py", 4),
        ("accelerate launch --num_processes 4 --tee 3 t.py", 0),
        ("python t.py", 0),
    ],
)
def test_streams_for_ranks(command: str, streams: int) -> None:
    """As many as there may be ranks on this machine, none where the user redirects them."""
    assert rank_streams(launcher_of(shlex.split(command), {}, "/")) == streams


def test_every_plan_has_a_rendezvous_of_its_own() -> None:
    """The plan says it, so a person can repeat the attempt; a remedy's variables come on top."""
    launcher = Launcher(family="torchrun", nodes=1, processes=2)
    state = fold((msgspec.structs.replace(RUN_STARTED, launcher=launcher),))
    first = first_plan(state, Policy(), {})
    assert first.env["PET_RDZV_ID"] == "r-1"
    second = plans.build(state, 2, "why", (), {})
    assert second.env["PET_RDZV_ID"] == "r-2"
    assert second.env["PET_LOG_DIR"] == "/r/attempts/0002/torchrun"
    assert plan().env == {}


def test_the_opening_says_what_the_launchers_own_restarts_mean() -> None:
    """They are kept, and come first; a shared store that the user wants is named with its price."""

    def opening(command: str, env: dict[str, str]) -> str:
        launcher = launcher_of(shlex.split(command), env, "/")
        started = msgspec.structs.replace(RUN_STARTED, launcher=launcher)
        state = fold((started,))
        lines = opening_lines(state=state, policy=Policy(), watching_pid=1, files="x")
        return "\n".join(line for line in lines if "restarts failed ranks" in line)

    assert opening("torchrun t.py", {}) == ""
    kept = opening("torchrun --max-restarts=3 t.py", {})
    assert "torchrun restarts failed ranks itself, 3 times in each attempt" in kept
    assert SHARE not in kept
    assert "2 times" in opening("accelerate launch --max_restarts 2 t.py", {})
    assert f"{SHARE} is as you set it" in opening(
        "torchrun t.py", {SHARE: "0"} | {"PET_MAX_RESTARTS": "1"}
    )
