"""Programs under torchrun and accelerate, unmodified: caught, dumped, resumed, told apart."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_ended_in_order,
    assert_hang_was_handled,
    assert_never_killed,
    assert_tree_is_gone,
    last_line,
)
from tests.support import (
    EXAMPLES,
    PROGRAMS,
    CompletedRun,
    bin_path,
    members_of,
    program_command,
    run_fast,
    run_wtrain,
    scenario_environment,
    start_fast,
    wait_until,
    write_fast_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(230)]

TORCHRUN = str(bin_path("torchrun"))
ACCELERATE = (
    str(bin_path("accelerate")), "launch", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no",
)  # fmt: skip
LOOP = str(PROGRAMS / "accelerate_loop.py")
HEALTHY = {
    "accelerate": (*ACCELERATE, "--multi_gpu", "--num_processes=2", LOOP, "--hang-at=-1"),
    "lightning": program_command(
        str(EXAMPLES / "lightning_fit.py"),
        *("--devices=2", "--workers=0", "--strategy=ddp", "--step_s=0.05"),
    ),
}
RESUME = ("--resume-arg", "--resume {checkpoint}")


def plans(run: CompletedRun) -> list[dict[str, str]]:
    """The variables of each attempt's plan."""
    return [event["plan"]["env"] for event in run.of_type("attempt_launching")]


def hung_and_came_home(run: CompletedRun, roles: list[str]) -> None:
    """The main path: one stall, a bundle of everybody, an orderly end, and the training's."""
    assert run.returncode == 0, run.describe()
    assert_hang_was_handled(run)
    seen = sorted(process["role"] for process in run.only("evidence_collected")["processes"])
    assert seen == sorted(roles), run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()


def test_accelerate_with_two_processes(tmp_path: Path) -> None:
    """A hang of rank 1: both ranks and the launcher are dumped, save_state's directory is used."""
    command = (*ACCELERATE, "--multi_gpu", "--num_processes=2", LOOP)
    run = run_fast(tmp_path, command, *RESUME, timeout_s=210)
    hung_and_came_home(run, ["launcher", "rank", "rank"])
    assert Path(run.only("checkpoint_chosen")["path"]).name == "step_10"
    assert last_line(run.stdout) == "finished step=40 ranks=2"
    assert all(env["PET_STANDALONE"] == "1" for env in plans(run))
    shown = run_wtrain("logs", "--rank", "1", "--attempt", "2", cwd=tmp_path).check(0).stdout
    assert shown == "rank 1 resumed at step 10\n"


def test_accelerate_with_one_process(tmp_path: Path) -> None:
    """Its launcher is not a rank, the script is; the DataLoader's worker is told from both."""
    command = (*ACCELERATE, "--cpu", "--num_processes=1", LOOP, "--workers=1")
    run = run_fast(tmp_path, command, *RESUME, timeout_s=210)
    hung_and_came_home(run, ["launcher", "rank", "worker"])
    assert last_line(run.stdout) == "finished step=40 ranks=1"


@pytest.mark.parametrize("library", HEALTHY)
def test_a_rank_that_is_killed(library: str, tmp_path: Path) -> None:
    """Its launcher may kill the others or wait: the rank is named, and training resumes."""
    pytest.importorskip(library)
    resume = RESUME if library == "accelerate" else ()
    running = start_fast(tmp_path, HEALTHY[library], *resume)
    saved = {"accelerate": "checkpoints/step_20", "lightning": "lightning-output/**/epoch=1-*.ckpt"}
    wait_until(lambda: list(tmp_path.glob(saved[library])), 120, "a checkpoint")
    (pid,) = wait_until(
        lambda: {one.pid for one in members_of(running.events) if one.rank == 1}, 30, "rank 1"
    )
    os.kill(pid, signal.SIGKILL)
    run = running.result(200).check(0)
    assert_ended_in_order(run)
    assert not run.of_type("stall_declared"), run.describe()
    assert "CRASH 0001: rank 1 was killed by SIGKILL" in run.stderr, run.describe()
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()


def test_torchruns_own_restart(tmp_path: Path) -> None:
    """It is the user's: a killed rank brings new ranks in the same attempt, and no alarm."""
    script = tmp_path / "restarted.py"
    script.write_text(
        "import os, signal, time\nimport torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT'] != '0'\n"
        "print('round', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(40):\n"
        "    if rank == 1 and step == 20 and not again: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n    time.sleep(0.1)\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    launch = (TORCHRUN, "--nproc-per-node=2", "--max-restarts=2", str(script))
    run = run_fast(tmp_path, launch, timeout_s=130).check(0)
    assert_never_killed(run)
    assert "torchrun restarts failed ranks itself, 2 times in each attempt" in run.stderr
    shown = run_wtrain("logs", "--rank", "1", cwd=tmp_path).check(0).stdout
    assert [line for line in shown.splitlines() if line.startswith("round")] == [
        "round 0",
        "round 1",
    ]


def test_the_users_own_choices_stay(tmp_path: Path) -> None:
    """Its port, its tee and its log directory are used; then lines are found by their marks."""
    script = tmp_path / "say.py"
    script.write_text("import os\nprint('port', os.environ['MASTER_PORT'], flush=True)\n")
    port = "29577"
    launch = (TORCHRUN, "--nproc-per-node=2", f"--master-port={port}", "--tee=3", "--log-dir=mine")
    run = run_wtrain("run", "--", *launch, str(script), cwd=tmp_path, timeout_s=90).check(0)
    assert sorted(run.stdout.splitlines()) == [f"[default{n}]:port {port}" for n in (0, 1)]
    assert set(plans(run)[0]) == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "PET_RDZV_ID"}
    logs = {path.read_text() for path in (tmp_path / "mine").rglob("stdout.log")}
    assert logs == {f"port {port}\n"}
    assert not (run.run_dir / "attempts/0001/ranks").exists()
    shown = run_wtrain("logs", "--rank", "1", cwd=tmp_path).check(0).stdout
    assert shown == f"[default1]:port {port}\n"


BARS = """\
import os, sys, time
rank = os.environ["RANK"]
size = os.get_terminal_size(1)
sys.stdout.write(f"{rank} {sys.stdout.isatty()} {sys.stderr.isatty()} {tuple(size)}\\n")
for number in range(5):
    sys.stdout.write(f"out {rank} {number}\\n")
    sys.stderr.write(f"err {rank} {number}\\n")
if rank == "0":
    for percent in range(0, 101, 20):
        sys.stderr.write(f"\\r{percent:3} %")
        time.sleep(0.01)
sys.stdout.write("half a ")
sys.stdout.write(f"line {rank}\\n")
"""
"""Each write() is one of the process, as torchrun starts ranks with -u."""


def on_a_terminal(command: list[str], cwd: Path) -> bytes:
    """What a terminal of 91 columns gets to see of a command."""
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 91, 0, 0))
    cwd.mkdir(exist_ok=True)
    environment = {**scenario_environment(cwd), "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = b""
    try:
        while block := os.read(master, 65536):
            seen += block
    except OSError:  # EIO: the last writer is gone
        pass
    os.close(master)
    assert process.wait(30) == 0, seen
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="ranks have streams of their own on Linux only")
def test_a_terminal_shows_what_it_shows_without_us(tmp_path: Path) -> None:
    """Terminal, size, bars, half lines and the order within a rank, although ranks are told apart.

    With one rank the bytes are the same; with two, those of each rank.
    """
    script = tmp_path / "bars.py"
    script.write_text(BARS)
    for ranks in (1, 2):
        command = [TORCHRUN, f"--nproc-per-node={ranks}", str(script)]
        alone = on_a_terminal(command, tmp_path / "alone")
        quiet = [str(bin_path("wtrain")), "run", "--quiet", "--", *command]
        cwd = tmp_path / f"with-{ranks}"
        ours = on_a_terminal(quiet, cwd)
        lines = [line for line in ours.split(b"\n") if not line.startswith(b"wtrain: ")]
        if ranks == 1:
            assert b"\n".join(lines) == alone
        own = [
            (cwd / f"wtrain-runs/latest/attempts/0001/ranks/{rank}/output.log").read_bytes()
            for rank in range(ranks)
        ]
        for rank, text in enumerate(own):
            assert text.startswith(b"%d True True (91, 31)\n" % rank)
            assert text.endswith(b"half a line %d\n" % rank)
            written = [line for line in text.split(b"\n") if line[:4] in (b"out ", b"err ")]
            assert len(written) == 10
            for seen in (alone, ours):
                positions = [seen.index(line) for line in written]
                assert positions == sorted(positions), (rank, seen)


@pytest.mark.skipif(not bin_path("uv").exists(), reason="uv is not installed")
def test_uv_run_torchrun(tmp_path: Path) -> None:
    """A wrapper before the launcher changes nothing of all this."""
    config = write_fast_config(tmp_path)
    launch = (str(bin_path("uv")), "run", "--no-project", "--offline", TORCHRUN, "--standalone")
    program = (str(PROGRAMS / "rank_faults.py"), "sleep")
    run = run_wtrain(
        "run", "--config", str(config), *RESUME, "--", *launch, "--nproc-per-node=2", *program,
        cwd=tmp_path, timeout_s=140,
    )  # fmt: skip
    seen = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert sorted(role for role in seen if role != "other") == ["launcher", "rank", "rank"]
    assert run.returncode == 0, run.describe()
    assert_tree_is_gone(run)
    launcher = json.loads((run.run_dir / "events.jsonl").read_bytes().splitlines()[0])["launcher"]
    assert launcher["settled"] == ["rendezvous", "id"]


def test_torchrun_in_a_script_with_a_pipe(tmp_path: Path) -> None:
    """It has a rendezvous for each attempt, and what its ranks print goes through the pipe."""
    launch = f"{TORCHRUN} --nproc-per-node=2 {PROGRAMS / 'rank_faults.py'} sleep"
    (tmp_path / "run.sh").write_text(f'set -o pipefail\n{launch} "$@" | tee -a log.txt\n')
    run = run_fast(tmp_path, ("bash", "run.sh"), *RESUME, timeout_s=140)
    seen = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert sorted(role for role in seen if role != "other") == ["launcher", "rank", "rank"]
    assert run.returncode == 0, run.describe()
    assert_tree_is_gone(run)
    ids = [env["PET_RDZV_ID"] for env in plans(run)]
    assert len(set(ids)) == 2, ids
    assert last_line((tmp_path / "log.txt").read_text()) == last_line(run.stdout)
