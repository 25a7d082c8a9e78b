"""Which node of a job a supervisor leads, and where the torchruns of all nodes meet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Record
from watchdog_train.core.fold.state import State
from watchdog_train.core.job import rendezvous
from watchdog_train.core.model import Survey, said
from watchdog_train.core.policy import Job, Policy
from watchdog_train.core.recovery.plans import Resume, build, launcher_environment
from watchdog_train.core.recovery.restart import between_attempts
from watchdog_train.core.starting import command_line
from watchdog_train.core.starting.jobs import JobTask, find_task
from watchdog_train.core.starting.launchers import describe
from watchdog_train.core.starting.nodes import NodeError, find_node
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.agent import own_plan
from watchdog_train.supervisor.hands.agent_messages import StartAttempt

# `srun -N2 --ntasks-per-node=1`, Slurm 22.05; what does not matter here is left out.
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
}
MEET = "tcp://n1:29501"
BATCH = {name: value for name, value in STEP.items() if "STEP" not in name}
# An indexed Job of Kubernetes: the pod's host name is JOB-INDEX.
POD = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "sft-workers-3"}
C10D = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:29500 --rdzv-id=x train.py"


def launcher(command: str, **environment: str) -> Any:
    found = command_line.find(command.split())
    return None if found is None else describe(found, environment)


def node(
    wanted: str, command: str = "torchrun train.py", rank: int | None = None, **environment: str
) -> JobTask | None:
    settings = Job(nodes=wanted, node_rank=rank, coordination=MEET)
    return find_node(settings, environment, launcher(command, **environment))


FOUND = {
    "a step of Slurm": (node("slurm", **STEP), ("slurm:77.0", 1, 2)),
    "a step, by itself": (node("auto", **STEP), ("slurm:77.0", 1, 2)),
    "a requeued job": (node("auto", **STEP, SLURM_RESTART_COUNT="2"), ("slurm:77.0-2", 1, 2)),
    "a number, the rank from the step": (node("2", **STEP), ("slurm:77.0", 1, 2)),
    "a number and a rank": (node("4", rank=3), ("nodes:", 3, 4)),
    "torchrun's own words": (node("auto", C10D + " x", rank=0), ("nodes:x@n1:29500", 0, 2)),
    "a static rendezvous": (
        node("auto", "torchrun --nnodes 4 --node-rank 2 --master-addr n1 train.py"),
        ("nodes:@n1", 2, 4),
    ),
    "Kubeflow's trainer": (
        node("auto", PET_NNODES="4", PET_NODE_RANK="2", PET_MASTER_ADDR="n1"),
        ("nodes:@n1", 2, 4),
    ),
    "an indexed job": (node("4", **POD), ("kubernetes:sft-workers", 3, 4)),
    "a JobSet": (
        node("8", **POD, JOBSET_NAME="sft", JOBSET_RESTART_ATTEMPT="1"),
        ("kubernetes:sft-1", 3, 8),
    ),
    "a name of our own": (node("2", rank=0, WTRAIN_JOB="mine"), ("job:mine", 0, 2)),
}


@pytest.mark.parametrize(("found", "wanted"), FOUND.values(), ids=FOUND)
def test_the_node_is_found(found: JobTask | None, wanted: tuple[str, int, int]) -> None:
    assert (found.job, found.task, found.tasks) == wanted
    assert (found.kind, found.here, found.met) == ("node", 1, wanted[2])
    assert found.words.startswith(f"node {wanted[1]} of {wanted[2]} of ")


def test_auto_takes_the_tasks_of_a_machine() -> None:
    """Several tasks a machine without a launcher are led as tasks; one a machine is a node."""
    step = {**STEP, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    settings = Job(nodes="auto", coordination=MEET)
    task = find_task(step, coordination=MEET)
    assert task is not None
    assert find_node(settings, step, None, task) == task
    assert find_node(Job(), step, None, task) == task
    with pytest.raises(NodeError, match="8 tasks on 2 nodes"):
        find_node(settings, step, launcher(C10D), task)
    with pytest.raises(NodeError, match="8 tasks need a place to meet"):
        find_node(Job(nodes="auto"), step, None, find_task(step))
    one = find_node(settings, STEP, None, find_task(STEP, coordination=MEET))
    assert one.kind == "node"


REFUSED = {
    "no step": (lambda: node("slurm", **BATCH), "no step of a Slurm job"),
    "several tasks a node": (
        lambda: node("slurm", **{**STEP, "SLURM_STEP_NUM_TASKS": "8"}),
        "8 tasks on 2 nodes",
    ),
    "nobody says how many": (lambda: node("auto", **POD), "how many"),
    "nobody says which": (lambda: node("2"), "which of the 2 nodes"),
    "a rank that is none": (lambda: node("2", rank=2), "none of 0 to 1"),
    "a negative rank": (lambda: node("2", rank=-1), "none of 0 to 1"),
    "no number": (lambda: node("two", rank=0), "'two'"),
    "too many": (lambda: node("99999999999999999999", rank=0), "up to 4096"),
    "torchrun knows of more": (lambda: node("4", C10D, rank=0), "torchrun is told of 2 nodes"),
    "torchrun has another rank": (
        lambda: node("2", "torchrun --node-rank=1 train.py", rank=0),
        "torchrun is told that this is node 1",
    ),
    "a rank without nodes": (lambda: find_node(Job(node_rank=1), {}, None), "which of how many"),
    "no place to meet": (lambda: find_node(Job(nodes="2", node_rank=0), {}, None), "place to meet"),
}


@pytest.mark.parametrize(("ask", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_is_refused(ask: Any, words: str) -> None:
    with pytest.raises(NodeError, match=words) as refused:
        ask()
    assert refused.value.hint


def test_one_node_is_no_job() -> None:
    assert node("1") is None
    assert node("auto", "torchrun --nnodes=1 train.py") is None
    assert find_node(Job(), STEP, None) is None


def test_tasks_of_several_machines_meet_at_an_address() -> None:
    """Without one only those of one machine do; with one all of them, known to be here or not."""
    far = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    apart = find_task(far)
    assert (apart.met, apart.here, apart.tasks) == (2, 2, 4)
    joined = find_task(far, coordination=MEET)
    assert (joined.met, joined.here, joined.kind) == (4, 2, "task")
    hand = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    assert find_task(hand) is None
    met = find_task(hand, coordination=MEET)
    assert (met.met, met.here) == (2, 0)


# Where they meet --------------------------------------------------------------------------------


def state(command: str, rank: int, **environment: str) -> State:
    """A node of two that has begun nothing yet."""
    who = node("2", command, rank, **environment)
    assert who is not None
    started = msgspec.structs.replace(
        b.RUN_STARTED,
        argv=tuple(command.split()),
        launcher=launcher(command, **environment),
        host=f"host{rank}",
        run_id=f"r{rank}",
    )
    return b.fold((started, e.TaskJoined(task=who)))


def planned(command: str, port: int | None = 29501, **environment: str) -> Any:
    leader = state(command, 0, **environment)
    return rendezvous.meet(build(leader, 2, said("why"), (), {}), leader, port)


MEETINGS = {
    "c10d": (
        C10D,
        {"PET_RDZV_ENDPOINT": "n1:29501", "PET_RDZV_ID": "x-2", "PET_RDZV_CONF": "is_host=1"},
        ("--rdzv-endpoint=n1:29501", "--rdzv-id=x-2"),
    ),
    "nothing said": (
        "torchrun train.py",
        {
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "host0:29501",
            "PET_RDZV_ID": "r0-2",
            "PET_NNODES": "2",
        },
        (),
    ),
    "static": (
        "torchrun --nnodes 2 --master-addr n1 --master-port 29500 train.py",
        {"PET_MASTER_ADDR": "n1", "PET_MASTER_PORT": "29501", "PET_NODE_RANK": "0"},
        ("--master-addr=n1", "--master-port=29501"),
    ),
}


@pytest.mark.parametrize(("command", "env", "options"), MEETINGS.values(), ids=MEETINGS)
def test_each_attempt_has_a_rendezvous_of_its_own(
    command: str, env: dict[str, str], options: tuple[str, ...]
) -> None:
    plan = planned(command)
    assert env.items() <= plan.env.items()
    assert plan.argv == (*command.split()[:-1], *options, "train.py")
    assert "29501" in why_text(plan.why)
    assert planned(command, port=None).argv == tuple(command.split())


def test_what_is_not_known_is_left_alone() -> None:
    """Other backends, options that come from a shell, and is_host where conf was said."""
    for command in (C10D.replace("c10d", "etcd-v2"), "torchrun $ARGS train.py", "python train.py"):
        assert not [name for name in planned(command).env if name.startswith("PET_RDZV")]
    assert "PET_RDZV_CONF" not in planned(C10D.replace("train.py", "--rdzv-conf a=1 t.py")).env


@pytest.mark.parametrize("own", ["--node-rank 1", "--node_rank=1", ""])
def test_another_node_takes_the_plan_over_with_its_own_rank(own: str) -> None:
    """The leader's command of the attempt, also what was added for the resume."""
    base = f"torchrun --nnodes 2 {own.replace('1', '0')} --master-addr n1 train.py".split()
    leader = state(" ".join(base), 0)
    how = Resume(argv=(*base, "--resume", "/c/1", "--lr=2"), via="none", why=said("why"))
    plan = build(leader, 2, said("why"), (), {}, how=how)
    plan = rendezvous.meet(plan, leader, 29501)
    for_all = {k: v for k, v in plan.env.items() if launcher_environment(leader, 2).get(k) != v}
    order = StartAttempt(plan=msgspec.structs.replace(plan, env=for_all), base=tuple(base))
    taken = own_plan(order, state(f"torchrun --nnodes 2 {own} --master-addr n1 train.py", 1))
    assert taken.argv[-4:] == ("train.py", "--resume", "/c/1", "--lr=2")
    found = command_line.find(taken.argv)
    assert found.options.get("node-rank") == ("1" if own else None)
    assert taken.env["PET_MASTER_PORT"] == "29501"
    assert taken.env.get("PET_NODE_RANK", "1") == "1"


def test_ports_follow_each_other_and_end_in_time() -> None:
    """Attempt 1 has the one that was named; nobody goes beyond the last one."""
    assert [rendezvous.port_of(29500, attempt) for attempt in (1, 2, 3)] == [29500, 29501, 29502]
    assert rendezvous.port_of(65535, 2) == 65535
    ports = {
        "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1 t.py": 29400,
        "torchrun --nnodes 2 --master-addr n1 t.py": 29500,
        "torchrun --nnodes 2 --master-port 7 t.py": 7,
        "torchrun --nnodes 2 t.py": None,
    }
    for command, wanted in ports.items():
        across = launcher(command).across
        assert rendezvous.first_port(across) == wanted, command


def test_a_taken_port_is_replaced_in_the_plan() -> None:
    crashed = (b.exited(1), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
    survey = Survey(findings=(), directories=())
    poll = b.sample(5.0, keeper_alive=False, empty_looks=2)
    for port, env in ((None, {}), (41234, {"MASTER_PORT": "41234"})):
        seen = b.observation(poll, survey=survey, other_port=port)
        made = between_attempts(seen, b.running(*crashed), Policy(), {})
        assert isinstance(made, Record)
        (plan,) = [one.plan for one in made.events if isinstance(one, e.PlanMade)]
        assert plan.env == env
        assert ("meet at 41234" in why_text(plan.why)) == (port is not None)
