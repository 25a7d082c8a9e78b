"""Two nodes of two ranks, each node under its own wtrain around its own torchrun."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cut_link import Network, NoNetworkError, two_networks
from tests.led import (
    agents,
    assert_evidence_first,
    assert_nothing_lives,
    assert_one_plan,
    attempts,
    described,
    leader,
    logs,
    runs,
    wait_for_step,
)
from tests.nodes import KEY, NODES, Launch, Place, ended, own_host, places, start_nodes
from tests.scenarios.checks import assert_blames
from tests.support import (
    EXAMPLES,
    Event,
    RunningWtrain,
    bin_path,
    free_port,
    of_type,
    run_directories,
    run_wtrain,
    sentence,
    start_wtrain,
    types,
    wait_until,
    write_fast_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("zmq")
LONG = "job: {gather_s: 120, lost_s: 300}\n"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two nodes that reach each other and nobody else."""
    try:
        with two_networks(tmp_path) as found:
            yield found
    except NoNetworkError as error:
        pytest.skip(f"NOT RUN: {error}")


def assert_finished(job: list[RunningWtrain], attempt: int, text: str) -> None:
    """The last step was reached by every rank, and nothing is left."""
    said = "\n".join(node.result(1).stdout for node in job)
    start = 20 if attempt > 1 else 0
    for rank in range(4):
        assert f"finished rank={rank} from={start} step=40 attempt={attempt}" in said, text
    assert_nothing_lives(job[0].cwd, text)


def assert_met_anew(cwd: Path, text: str) -> None:
    """Each attempt of the torchruns has a place of its own to meet, the same on both nodes."""
    plans = [
        [one["plan"] for one in of_type(log, "attempt_launching")] for log in logs(cwd).values()
    ]
    for first, second in plans:
        for name in ("PET_RDZV_ID", "PET_RDZV_ENDPOINT"):
            assert first["env"][name] != second["env"][name], text
            assert second["env"][name] == plans[0][1]["env"][name], text
        assert f"--rdzv-endpoint={second['env']['PET_RDZV_ENDPOINT']}" in second["argv"], text
        assert second["checkpoint"]["path"].endswith("checkpoints/step-000020.pt"), text
    hosts = [second["env"]["PET_RDZV_CONF"] for _, second in plans]
    assert hosts == ["is_host=1", "is_host=0"], text


def test_a_hang_on_one_node_begins_again_on_both(tmp_path: Path, network: Network) -> None:
    """Evidence of both nodes before the first kill, one explanation, which names the node."""
    job = network.start(tmp_path, "--fault", "hang", "--rank", "3")
    text = ended(job, 0, 0, timeout_s=500)
    assert_one_plan(tmp_path, text)
    assert_met_anew(tmp_path, text)
    assert_finished(job, 2, text)
    log = leader(tmp_path)
    (diagnosed,) = of_type(log, "stall_explained")
    assert diagnosed["host"] == "node-1", text
    assert_blames(diagnosed, 3, ("rank-left-early",), surely=True)
    shown = run_wtrain("status", "--json", log[0]["run_id"], cwd=tmp_path).json()
    assert shown["job"]["kind"] == "node"
    assert shown["last_stall"]["explanation"] == diagnosed["explanation"]


def test_a_crash_on_one_node_begins_again_on_both(tmp_path: Path) -> None:
    """torchrun ends the ranks of both nodes by itself."""
    job = start_nodes(tmp_path, "--fault", "crash")
    text = ended(job, 0, 0)
    assert_one_plan(tmp_path, text)
    assert_met_anew(tmp_path, text)
    assert_finished(job, 2, text)


def torchrun(number: int, at: Sequence[Place], port: int) -> Sequence[str]:
    """With numbers that the user gives."""
    where = (f"--node-rank={number}", f"--master-addr={at[0].address}", f"--master-port={port}")
    return (str(bin_path("torchrun")), f"--nnodes={NODES}", *where, "--nproc-per-node=2")


def accelerate(number: int, at: Sequence[Place], port: int) -> Sequence[str]:
    return (
        *(str(bin_path("accelerate")), "launch", "--multi_gpu", f"--num_machines={NODES}"),
        *(f"--machine_rank={number}", f"--num_processes={2 * NODES}", "--mixed_precision=no"),
        *(f"--main_process_ip={at[0].address}", f"--main_process_port={port}"),
        "--dynamo_backend=no",
    )


def deepspeed(number: int, at: Sequence[Place], port: int) -> Sequence[str]:
    return (
        *(str(bin_path("deepspeed")), "--hostfile=hostfile", "--no_ssh", "--no_local_rank"),
        *(f"--node_rank={number}", f"--master_addr={at[0].address}", f"--master_port={port}"),
    )


@pytest.mark.parametrize("fault", ["hang", "crash"])
@pytest.mark.parametrize("launch", [torchrun, accelerate, deepspeed])
def test_another_launcher_of_two_nodes(
    tmp_path: Path, network: Network, launch: Launch, fault: str
) -> None:
    """It begins again on both nodes, and one explanation names the rank that failed."""
    library = launch.__name__
    if launch is not torchrun and importlib.util.find_spec(library) is None:
        pytest.skip(f"NOT RUN: {library} is not installed")
    (tmp_path / "hostfile").write_text("".join(f"node-{n} slots=2\n" for n in range(NODES)))
    job = network.start(tmp_path, "--fault", fault, launch=launch)
    text = ended(job, 0, 0, timeout_s=500)
    assert_one_plan(tmp_path, text)
    assert_finished(job, 2, text)
    (told,) = of_type(leader(tmp_path), "stall_explained")
    assert told["explanation"]["root"]["who"]["rank"] == 3, text
    said = job[0].result(1).stderr
    assert fault == "hang" or said.count("CRASH 0001") == 1, said
    wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either namespace")


def test_a_rank_that_evaluates_alone_is_no_stall(tmp_path: Path) -> None:
    """Ten soft budgets long rank 0 works and three wait, on both nodes: nobody is dumped for it."""
    job = start_nodes(tmp_path, "--fault", "eval", "--rank", "0")
    text = ended(job, 0, 0)
    # By the steps that it had made itself, whatever the machine has made of them.
    said = "".join(node.result(1).stdout for node in job)  # rank 0 may be on either
    (budgets,) = re.findall(r"^evaluated budgets=([\d.]+)", said, re.MULTILINE)
    assert float(budgets) >= 10, text
    for log in logs(tmp_path).values():
        assert not of_type(log, "stall_declared"), text
        assert not [one for one in of_type(log, "signalling") if one["targets"]], text
        assert attempts(log) == [1], text
    assert_finished(job, 1, text)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_supervisor_is_killed(tmp_path: Path, victim: int) -> None:
    """The leader's or the agent's: the hang is caught all the same, and the engine is asked."""
    if not own_host(0):
        pytest.skip("only root can give the supervisors hosts of their own")
    at = places()
    job = start_nodes(tmp_path, "--fault", "hang", at=at)
    wait_for_step(tmp_path, NODES, 5)
    os.kill(job[victim].process.pid, signal.SIGKILL)
    done = job[1 - victim].result(280)
    text = described(tmp_path)
    assert done.returncode == 75, text
    log = logs(tmp_path)[1 - victim]
    assert_evidence_first(log, text)
    if victim:
        why = sentence(of_type(log, "run_finished")[0]["why"])
        assert "node1 (node-1)" in why, text
    # What the dead one has left is its own node's: there it is taken up, and ended.
    at[victim].run(tmp_path, "adopt", str(runs(tmp_path)[victim])).check(75)
    assert_nothing_lives(tmp_path, text)


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_alone_says_what_it_waits_for(tmp_path: Path, node: int) -> None:
    """Nothing is started before all nodes have met; a second one of the same number is refused."""
    config = write_fast_config(tmp_path)
    options = ("run", "--config", str(config), "--coordination", f"tcp://127.0.0.1:{free_port()}")
    which = ("--nodes", "2", "--node-rank", str(node), "--", "true")
    alone = start_wtrain(*options, *which, cwd=tmp_path, env=KEY)
    wait_until(lambda: logs(tmp_path).get(node), 30, "the node has joined")
    if node == 0:
        as_well = ("--duplicates", "ignore", *which)
        again = run_wtrain(*options, *as_well, cwd=tmp_path, env=KEY).check(78)
        assert "Address already in use" in again.stderr
        assert len(run_directories(tmp_path)) == 1
    wait_until(lambda: of_type(logs(tmp_path)[node], "noticed"), 30, "it says that it waits")
    alone.process.send_signal(signal.SIGTERM)
    done = alone.result(60).check(77)
    assert f"waiting for {('node1', 'node 0')[node]}" in done.stderr
    assert not attempts(logs(tmp_path)[node])


def test_a_cut_link_ends_both_sides_in_time(tmp_path: Path, network: Network) -> None:
    """All ranks wait: each side takes its evidence, ends its own, and exits with 75."""
    job = network.start(tmp_path, "--steps", "4000")
    wait_for_step(tmp_path, NODES, 2)
    network.cut()
    text = ended(job, 75, 75, timeout_s=500)
    for log in logs(tmp_path).values():
        assert_evidence_first(log, text)
        assert attempts(log) == [1], text
    (lost,) = of_type(leader(tmp_path), "machine_lost")
    assert lost["host"] == "node1", text
    wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either namespace")


def test_a_link_that_heals_in_time_is_used_again(tmp_path: Path, network: Network) -> None:
    """Nothing was concluded from the silence; the job ends well, with or without a restart."""
    job = network.start(tmp_path, "--step-s", "0.5", job=LONG)
    wait_for_step(tmp_path, NODES, 2)
    network.cut()
    wait_until(lambda: "suspected" in types(leader(tmp_path)), 120, "the silence is seen")
    network.mend()
    text = ended(job, 0, 0, timeout_s=600)
    assert "machine_lost" not in types(leader(tmp_path)), text
    assert_nothing_lives(tmp_path, text)
    wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either namespace")


def start_trainer(cwd: Path, *, ask_s: int = 120, **more: Any) -> list[RunningWtrain]:
    """A long Hugging Face training that saves nothing by itself."""
    script = cwd / "train.py"
    text = (EXAMPLES / "hf_trainer.py").read_text()
    text = text.replace("save_steps=10,", "save_steps=100000,")
    script.write_text(text.replace("dataloader_num_workers=2", "dataloader_num_workers=0"))
    (cwd / "text.txt").write_text((EXAMPLES / "text.txt").read_text())
    return start_nodes(cwd, "--max_steps", "90000", script=script, ask_s=ask_s, **more)


def proofs(events: list[Event], request: str) -> list[Event]:
    return [one for one in of_type(events, "save_proven") if one["request"] == request]


def signals(events: list[Event]) -> list[Event]:
    return [one for one in of_type(events, "signalling") if one["targets"] and one["signal"]]


@pytest.mark.parametrize("asked", [0, 1])
def test_both_nodes_save_and_stop_when_one_is_asked(tmp_path: Path, asked: int) -> None:
    """One request, one number, one step of all four ranks, a whole checkpoint; then the stop."""
    job = start_trainer(tmp_path, job=LONG)
    wait_for_step(tmp_path, NODES, 3)
    run = str(runs(tmp_path)[asked])
    saved = run_wtrain("save", "--wait", run, cwd=tmp_path, timeout_s=200)
    assert saved.returncode == 0, saved.describe() + described(tmp_path)
    assert "saved a valid checkpoint" in saved.stderr
    (proven,) = proofs(leader(tmp_path), "save")
    for log in logs(tmp_path).values():
        (request,) = of_type(log, "save_requested")
        assert (request["sequence"], request["can_be_asked"]) == (1, True)
    for rank in range(4):
        assert (Path(proven["path"]) / f"rng_state_{rank}.pth").exists()
    wait_for_step(tmp_path, NODES, proven["step"] + 3)

    run_wtrain("stop", run, cwd=tmp_path, timeout_s=200).check(0)
    text = ended(job, 77, 77)
    log = leader(tmp_path)
    assert not signals(log), text
    (answered,) = [one for one in of_type(log, "request_answered") if one["request"] == "stop"]
    (last,) = proofs(log, "stop")
    assert answered["step"] <= last["step"], text
    assert last["step"] > proven["step"], text
    assert {one["code"] for one in of_type(log, "attempt_exited")} == {0}, text
    assert not of_type(log, "checkpoints_shared"), text
    assert_nothing_lives(tmp_path, text)


def test_a_node_that_does_not_answer_leads_to_the_signal(tmp_path: Path) -> None:
    """Its supervisor stands still: the ranks never agree, go on training, and get the signal."""
    job = start_trainer(tmp_path, ask_s=10)
    wait_for_step(tmp_path, NODES, 3)
    os.kill(job[1].process.pid, signal.SIGSTOP)
    try:
        stopped = run_wtrain("stop", str(runs(tmp_path)[0]), cwd=tmp_path, timeout_s=400)
    finally:
        os.kill(job[1].process.pid, signal.SIGCONT)
    text = described(tmp_path)
    assert stopped.returncode == 0, stopped.describe() + text
    log = leader(tmp_path)
    assert of_type(log, "stop_asked"), text
    assert not of_type(log, "request_answered"), text
    first = signals(log)[0]
    assert first["stage"] == "root", text
    assert "it has not ended within" in sentence(first["why"]), text
    assert job[0].result(60).returncode == 77, text
    job[1].result(200)
    assert agents(tmp_path), text
    assert_nothing_lives(tmp_path, text)
