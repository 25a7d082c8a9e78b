"""The table of patience: each row, and how rows of several waits are put together."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.explanation import PatienceRow, Silence
from watchdog_train.core.policy import WaitLimits
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.graph import Waits
from watchdog_train.explain.patience import judge, patience

OURS = x.Place(function="fetch", file="train.py", line=3)
LIBRARY = x.Place(function="all_reduce", file="torch/distributed/distributed_c10d.py", line=7)
SOMEBODY = (w.ProcessRef(pid=7, start=1, name="judge"),)
FREE = Waits(free=True)
IN_TRAINING = Silence()


def still(doing: x.Doing, *, at: x.Place | None = None) -> x.Standstill:
    return x.Standstill(who=x.Who(pid=1, role="rank", rank=0), doing=doing, own=OURS, at=at)


def judged(
    doing: Mapping[int, x.Doing],
    graph: Mapping[int, Waits] | None = None,
    *,
    silent: tuple[int, ...] = (0,),
    proven: frozenset[int] = frozenset(),
    silence: Silence = IN_TRAINING,
) -> tuple[PatienceRow, float | None]:
    found = patience(
        graph or dict.fromkeys(doing, FREE),
        {node: still(one, at=LIBRARY) for node, one in doing.items()},
        silent,
        silence=silence,
        limits=WaitLimits(),
        rows=dict.fromkeys(proven, "proven"),
    )
    return found.row, found.limit_s


FIFO = w.FileWait(call="open", path="/p", kind="fifo")
NETWORK = w.TcpWait(call="read", address="10.0.0.1:80")


@pytest.mark.parametrize(
    ("doing", "row", "limit_s"),
    [
        (FIFO, "fifo", 45.0),
        (w.FileWait(call="open", kind="fifo", unlinked=True), "proven", 20.0),
        (w.FileWait(call="open", kind="fifo", complete=False), "unknown", 75.0),
        (w.FileWait(call="read", kind="fifo", others=SOMEBODY), "outsider", 900.0),
        (w.FileWait(call="read", kind="regular", network="nfs4"), "network", 600.0),
        (w.FileLockWait(path="/lock", holders=SOMEBODY), "outsider", 900.0),
        (w.FileLockWait(path="/lock", complete=False), "unknown", 75.0),
        (w.PipeWait(call="read", others=SOMEBODY), "outsider", 900.0),
        (w.PipeWait(call="read", listens=True), "poll", 900.0),
        (NETWORK, "network", 600.0),
        (w.TcpWait(call="read", address="127.0.0.1:80"), "outsider", 900.0),
        (w.TcpWait(call="accept", address="0.0.0.0:80"), "poll", 900.0),
        (w.ChildWait(children=SOMEBODY), "outsider", 900.0),
        (w.MutexWait(address=1, owner_lives=False), "proven", 20.0),
        (w.MutexWait(address=1), "unknown", 75.0),
        (w.SleepWait(left_s=100.0), "sleep", None),
        (w.SleepWait(left_s=86400.0), "unknown", 75.0),
        (w.SleepWait(), "poll", 900.0),
        (w.SleepWait(left_s=1.0, repeats=True), "poll", 900.0),
        (w.UnknownWait(why="call", call="signal"), "poll", 900.0),
        (w.PollWait(), "unknown", 75.0),
        (w.PollWait(waits=(NETWORK, FIFO)), "network", 600.0),
        (w.TerminalWait(), "input", None),
        (w.Stopped(), "stopped", None),
        (w.UnknownWait(why="refused"), "unknown", 75.0),
        (x.Computing(), "at-work", 75.0),
    ],
)
def test_a_row_of_the_table(doing: x.Doing, row: PatienceRow, limit_s: float | None) -> None:
    assert judged({0: doing}) == (row, limit_s)


def at_work(*functions: tuple[str, str]) -> ProcessEvidence:
    frames = tuple(Frame(function=name, file=file, line=1) for name, file in functions)
    thread = ThreadStack(frames=frames, name="MainThread", os_id=7, main=True)
    return ProcessEvidence(pid=7, start=1, ppid=1, role="other", state="S", threads=(thread,))


WORKER = (
    ("poll", "kombu/utils/eventio.py"),
    ("asynloop", "celery/worker/loops.py"),
    ("<module>", "worker.py"),
)


def test_a_worker_without_a_task_is_waited_for_for_ever() -> None:
    """With its preset or not, whatever its broker; one whose task waits is not."""
    idle = Chains(Evidence(why="stall", processes=(at_work(*WORKER),)))
    assert judge(idle, silence=IN_TRAINING, limits=WaitLimits()).row == "service"
    task = (("train", "tasks.py"), ("trace_task", "celery/app/trace.py"), *WORKER)
    busy = Chains(Evidence(why="stall", processes=(at_work(*task),)))
    assert judge(busy, silence=IN_TRAINING, limits=WaitLimits()).row != "service"


def test_a_poll_of_the_users_own_is_waited_for_whatever_it_polls() -> None:
    polls = {0: still(w.PollWait(waits=(FIFO,)))}
    found = patience({0: FREE}, polls, (0,), silence=IN_TRAINING, limits=WaitLimits())
    assert found.row == "poll"


def test_where_the_silence_began_counts() -> None:
    early, saving = Silence(early=True), Silence(phase="checkpoint")
    unknown = w.UnknownWait(why="call")
    assert judged({0: unknown}, silence=early)[1] == 150.0
    assert judged({0: FIFO}, silence=early)[1] == 60.0, "nothing is called so early before that"
    assert judged({0: FIFO}, silence=saving)[1] == 45.0
    assert judged({0: FIFO}, silence=Silence(phase="startup"))[1] == 900.0
    assert judged({0: NETWORK}, silence=Silence(phase="eval"))[1] == 1800.0
    assert judged({0: unknown}, proven=frozenset({0}), silence=early)[1] == 60.0
    assert judged({0: unknown}, proven=frozenset({0}), silence=saving)[1] == 45.0


def test_the_absent_ranks_are_judged_and_not_those_that_wait_for_them() -> None:
    collective = x.CollectiveWait(op="all_reduce")
    graph = {0: Waits(needs=(1,)), 1: FREE}
    assert judged({0: collective, 1: NETWORK}, graph, silent=(0, 1)) == ("network", 600.0)
    assert judged({0: collective, 1: FIFO}, graph, silent=(0, 1)) == ("fifo", 45.0)


def test_of_waits_that_are_all_needed_the_shortest_counts_and_the_unknown_shortens_nothing() -> (
    None
):
    graph = {0: Waits(needs=(1, 2)), 1: FREE, 2: FREE}
    loader = x.BatchWait()
    unknown = w.UnknownWait(why="refused")
    assert judged({0: loader, 1: NETWORK, 2: FIFO}, graph) == ("fifo", 45.0)
    assert judged({0: loader, 1: NETWORK, 2: unknown}, graph) == ("network", 600.0)


def test_of_those_who_could_end_it_the_most_patient_counts() -> None:
    graph = {0: Waits(any_of=(1, 2)), 1: FREE, 2: FREE}
    assert judged({0: x.PythonLockWait(), 1: NETWORK, 2: FIFO}, graph) == ("network", 600.0)


def test_when_only_idle_ones_owe_it_nobody_is_left() -> None:
    graph = {0: Waits(needs=(1,)), 1: Waits(free=True, idle=True)}
    assert judged({0: x.BatchWait(), 1: NETWORK}, graph) == ("nobody-left", 60.0)
    assert judged({0: x.PythonLockWait()}, {0: Waits()}) == ("nobody-left", 60.0)
    incomplete = {0: Waits(complete=False)}
    assert judged({0: x.PythonLockWait()}, incomplete) == ("unknown", 75.0)


def test_a_circle_is_nobody_left_unless_it_is_proven() -> None:
    graph = {0: Waits(needs=(1,)), 1: Waits(needs=(0,))}
    pipe = w.PipeWait(call="read")
    assert judged({0: pipe, 1: pipe}, graph)[0] == "nobody-left"
    assert judged({0: pipe, 1: pipe}, graph, proven=frozenset({1}))[0] == "proven"


@pytest.mark.parametrize("seed", range(200))
def test_any_graph_has_an_answer_and_forgetting_never_hastens_a_known_pause(seed: int) -> None:
    lot = random.Random(seed)
    nodes = range(lot.randint(1, 8))
    doings = (FIFO, NETWORK, w.UnknownWait(why="call"), w.SleepWait(left_s=5.0), x.Computing())
    doing: dict[int, x.Doing] = {node: lot.choice(doings) for node in nodes}

    def some() -> tuple[int, ...]:
        return tuple(node for node in nodes if lot.random() < 0.3)

    graph = {
        node: FREE
        if lot.random() < 0.4
        else Waits(needs=some(), any_of=some(), complete=lot.random() < 0.8)
        for node in nodes
    }
    row, limit_s = judged(doing, graph, silent=tuple(nodes))
    assert limit_s is None or limit_s >= WaitLimits().proven_s
    if row == "network":
        forgotten = {
            node: w.UnknownWait(why="refused") if one is not NETWORK else one
            for node, one in doing.items()
        }
        assert judged(forgotten, graph, silent=tuple(nodes))[0] != "unknown"
