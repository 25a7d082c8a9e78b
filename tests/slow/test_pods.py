"""The script of the JobSet's manifest in two pods: own network, host name, pids and mounts each.

Each has the environment that Kubernetes gives such pods; wtrain is its first process.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.cut_link import ADDRESSES, Network, NoNetworkError, two_networks
from tests.led import attempts
from tests.nodes import KEY, NODES
from tests.support import (
    EXAMPLES,
    PROGRAMS,
    RunningWtrain,
    bin_path,
    of_type,
    read_log,
    run_directories,
    start_wtrain,
    wait_until,
    write_fast_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUNS = "shared/sft/runs"
SETUP = (
    'mount --bind "$1" /etc/hosts && mount -t tmpfs none /dev/shm && hostname "$2" && '
    'shift 2 && exec "$@"'
)
NEW = ("--uts", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")


def script(cwd: Path) -> str:
    """The manifest's, on two nodes of two ranks that train a program of ours."""
    manifest = yaml.safe_load((EXAMPLES / "kubernetes" / "jobset.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    text = container["args"][0].replace("/shared/", f"{cwd}/shared/")
    text = text.replace("--nnodes=4", f"--nnodes={NODES}").replace("node=8", "node=2")
    program = f"{PROGRAMS / 'node_ranks.py'} --step-s 0.3"
    found, times = re.subn(r"train\.py --output \S+", program, text)
    assert times == 1
    return found


def start(network: Network, cwd: Path, number: int, again: int) -> RunningWtrain:
    """A pod with nothing of an earlier one but the shared volume."""
    own = cwd / f"pod-{number}-{again}"
    (own / "run").mkdir(parents=True, mode=0o700)
    name = f"sft-node-0-{number}"
    env = {
        **KEY,
        "WTRAIN_NAME": "sft",
        "WTRAIN_RUNS_DIR": str(cwd / RUNS),
        "XDG_STATE_HOME": str(own / "state"),
        "XDG_RUNTIME_DIR": str(own / "run"),
        "JOBSET_NAME": "sft",
        "JOBSET_RESTART_ATTEMPT": "0",
        "JOB_COMPLETION_INDEX": str(number),
        "HOSTNAME": name,
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": network.names[number],
        "PATH": f"{cwd}/.limits:{bin_path('wtrain').parent}:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    pod = ("ip", "netns", "exec", network.names[number], "unshare", *NEW, "sh", "-c", SETUP, "sh")
    command = (*pod, str(network.hosts), name, "sh", "-c", script(cwd))
    return start_wtrain(cwd=cwd, env=env, wtrain=command)


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "agent"])
def test_a_pod_that_is_killed_is_made_anew(tmp_path: Path, victim: int) -> None:
    """With all of its processes and its own files: the job goes on from the newest checkpoint."""
    write_fast_config(tmp_path, "job: {gather_s: 120, lost_s: 120}\n").rename(
        tmp_path / "wtrain.yaml"
    )
    saved = tmp_path / "shared/sft/checkpoints"
    saved.mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(saved)  # where the program saves
    try:
        with two_networks(tmp_path) as network:
            pods = zip(ADDRESSES, range(NODES), strict=True)
            lines = [f"{address} sft-node-0-{n}.sft sft-node-0-{n}\n" for address, n in pods]
            network.hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
            job = [start(network, tmp_path, number, 0) for number in range(NODES)]
            reached = "the first checkpoint is there"
            wait_until(lambda: list(saved.glob("step-000010.pt")), 240, reached)
            job[victim].process.kill()  # unshare ends the first process, and that all others
            job[victim].process.wait(30)
            job[victim] = start(network, tmp_path, victim, 1)
            done = [pod.result(280) for pod in job]
            text = "\n".join(one.describe() for one in done)
            assert [one.returncode for one in done] == [0, 0], text
            wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either pod")
    except NoNetworkError as error:
        pytest.skip(f"NOT RUN: {error}")
    log = read_log(run_directories(tmp_path, RUNS)[-1])
    begun = of_type(log, "attempt_launching")
    assert attempts(log) == [1, 2], text
    assert begun[1]["plan"]["checkpoint"]["step"] >= 10, text
    for rank in range(2 * NODES):
        said = f"finished rank={rank} from={begun[1]['plan']['checkpoint']['step']} "
        assert sum(said in one.stdout for one in done) == 1, text
