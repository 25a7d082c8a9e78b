"""Two machines, or two containers, give the same pids: a pid tells something only within one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.core.test_diagnose import evidence_of
from tests.core.test_first_failure import gone
from tests.core.test_glance import bundle_in
from watchdog_train.core.diagnosis.collectives import compare
from watchdog_train.core.diagnosis.facts import CollectiveFact, Evidence, LogText
from watchdog_train.core.diagnosis.first_failure import first_failures
from watchdog_train.core.diagnosis.places import groups, root_process
from watchdog_train.core.model import Explanation, Standstill, Who
from watchdog_train.core.model.waits import ChildWait
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.evidence.joint import answer
from watchdog_train.evidence.machines import together
from watchdog_train.evidence.request import JointRequest
from watchdog_train.explain.judge import judge
from watchdog_train.report.evidence_text import glance

PID, PARENT = 21, 7
WAITS = [
    "all_reduce (torch/distributed/distributed_c10d.py:2810)",
    "train_step (train.py:30)",
    "main (train.py:50)",
]
SLEEPS = ["main (train.py:44)", "<module> (train.py:60)"]
LAUNCHER = ["wait (selectors.py:415)", "run (torch/distributed/run.py:900)"]


def node(first_rank: int, *stacks: list[str]) -> Evidence:
    """A launcher and its ranks, with the same pids on every node."""
    ranks = [
        {"pid": PID + n, "ppid": PARENT, "role": "rank", "rank": first_rank + n, "main": stack}
        for n, stack in enumerate(stacks)
    ]
    launcher = {"pid": PARENT, "ppid": 1, "role": "launcher", "main": LAUNCHER}
    return evidence_of({"why": "stall", "processes": [launcher, *ranks]})


@pytest.mark.parametrize("guilty", [0, 1, 2, 3])
def test_the_right_one_of_two_with_the_same_pid_is_named(guilty: int) -> None:
    """Whichever rank has left, its namesake on the other node is not blamed for it."""
    stacks = [SLEEPS if rank == guilty else WAITS for rank in range(4)]
    whole = together([node(0, *stacks[:2]), node(2, *stacks[2:])])
    told = judge(whole)
    assert told.family == "rank-left-early"
    assert (told.root.who.rank, told.root.who.pid) == (guilty, PID + guilty % 2)
    found = root_process(whole, told)
    assert (found.part, found.rank) == (guilty // 2, guilty)
    first, *_ = groups(whole, told)
    assert [process.who.rank for process in first.processes] == [guilty]
    assert f"rank {guilty}: main (train.py:44)" in glance(whole, told)


def test_two_launchers_with_the_same_pid_are_not_told_apart() -> None:
    """Of somebody without a rank, who may be either of two, no machine is named."""
    whole = together([node(0, WAITS, WAITS), node(2, WAITS, WAITS)])
    launcher = Standstill(who=Who(pid=PARENT, role="launcher"), doing=ChildWait())
    blamed = Explanation(kind="hang", root=launcher)
    assert root_process(whole, blamed) is None
    assert root_process(node(0, WAITS), blamed) is not None


def test_what_a_launcher_prints_is_of_its_own_ranks() -> None:
    said = "  exitcode  : -9 (pid: 21)"
    ends = [Evidence(why="crash", processes=(gone(rank, 100.0, pid=PID),)) for rank in (0, 1)]
    logs = (LogText(source="output.log", lines=(said,)),)
    whole = together([ends[0], replace(ends[1], logs=logs)])
    failures = first_failures(whole.processes, whole.logs)
    assert [process.rank for process, _ in failures] == [1]


def test_a_rank_that_has_ended_has_no_stacks_of_the_next_one(tmp_path: Path) -> None:
    """A launcher has started it again, and the system has given it the same pid."""
    ended = gone(0, 100.0, pid=PID)
    living = node(0, WAITS)
    both = replace(living, processes=(*living.processes, ended))
    bundle_in(tmp_path, both, 100.0)
    read = read_inputs([str(tmp_path)]).evidence
    assert [bool(one.threads) for one in read.processes] == [True, True, False]


def test_the_joint_bundle_names_the_one_to_blame(tmp_path: Path) -> None:
    bundles = tuple(str(tmp_path / name) for name in ("node0", "node1"))
    for path, given in zip(bundles, (node(0, WAITS, WAITS), node(2, WAITS, SLEEPS)), strict=True):
        Path(path).mkdir()
        bundle_in(Path(path), given, 100.0)
    found = answer(JointRequest(bundles=bundles, out=str(tmp_path / "out.json")))
    assert (found.explanation.root.who.rank, found.where) == (3, bundles[1])
    kept = json.loads((tmp_path / "node0" / "joint.json").read_text())
    assert kept["where"] == bundles[1]


def test_the_records_of_all_nodes_are_compared(tmp_path: Path) -> None:
    """Stacks alone cannot tell: who is behind in sequence numbers is, also on another node."""
    for number, (path, seq) in enumerate((("node0", 8), ("node1", 7))):
        facts = tuple(
            CollectiveFact(rank=2 * number + n, group="0", seq=seq, op="ALLREDUCE",
                           last_enqueued=seq, last_completed=seq - 1)
            for n in range(2)
        )  # fmt: skip
        given = replace(
            node(2 * number, WAITS, WAITS), collectives=facts, exchanging=(), world_size=4
        )
        (tmp_path / path).mkdir()
        bundle_in(tmp_path / path, given, 100.0)
    whole = read_inputs([str(tmp_path / "node0"), str(tmp_path / "node1")]).evidence
    assert whole.world_size == 4
    assert {fact.rank: fact.seq for fact in whole.collectives} == {0: 8, 1: 8, 2: 7, 3: 7}
    compared = compare(whole.collectives)
    assert compared.relation == "behind"
