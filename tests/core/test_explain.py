"""Who does what, on which object, and who waits for it: the explanation of evidence as a table."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_diagnose import evidence_of, frames_of
from tests.core.test_first_failure import gone
from watchdog_train.core.diagnosis.facts import CollectiveFact, Evidence, HostFacts
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import ExceptionFact
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.exceptions import CodePlace
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.explanation import explain
from watchdog_train.explain.judge import judge
from watchdog_train.explain.waits import device_call
from watchdog_train.report.explanation_text import cause_words, sentences, what_happened

REDUCE = (
    "all_reduce (torch/distributed/distributed_c10d.py:1)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
    "step (train.py:11)",
)
SAVE = ("__init__ (torch/serialization.py:792)", "save (torch/serialization.py:970)")
LOADER = (
    "wait (threading.py:327)",
    "get (queue.py:180)",
    "_try_get_data (torch/utils/data/dataloader.py:1)",
    "__next__ (torch/utils/data/dataloader.py:2)",
    "main (train.py:30)",
)
FETCHING = (
    "__getitem__ (data.py:31)",
    "fetch (torch/utils/data/_utils/fetch.py:52)",
    "_worker_loop (torch/utils/data/_utils/worker.py:1)",
)
IDLE_WORKER = (
    "get (multiprocessing/queues.py:1)",
    "_worker_loop (torch/utils/data/_utils/worker.py:1)",
)
MAIN = ("main (train.py:9)",)


def process(pid, *main, role="rank", rank=0, ppid=1, **more):
    return {
        "pid": pid, "ppid": ppid, "role": role, "rank": rank, "state": "S", "cpu_share": 0.0,
        "main": main, **more,
    }  # fmt: skip


def told(*processes, why="stall", since_s=None, **more):
    """The explanation of these processes, and its sentences."""
    evidence = evidence_of({"why": why, "processes": list(processes)})
    evidence = msgspec.structs.replace(evidence, **more)
    found = explain(Chains(evidence), since_s)
    return found, " ".join(sentences(found))


FIFO = {"wait": "file", "call": "open", "path": "out/ckpt.pt", "kind": "fifo"}
HELD = {"wait": "file_lock", "path": "the.lock", "holders": [{"pid": 99, "start": 1, "name": "vi"}]}
PIPE = {"wait": "pipe", "call": "read", "others": [{"pid": 99, "start": 1, "name": "judge"}]}
SYNCHRONIZE = ("synchronize (torch/cuda/__init__.py:1040)", *MAIN)
STUCK = GpuUse(device=2, util=100.0, power=0.217, other_names=("pid 7 (vi, user alice)",))
READ = "read (ssl.py:1)"
SERVER = {"wait": "tcp", "call": "read", "address": "10.0.0.7:443"}
MUTEX = {"wait": "mutex", "address": 1}
ALONE = {
    "a FIFO in a save": (
        (*SAVE, *MAIN), {"wait": FIFO}, "opening out/ckpt.pt", "torch.save",
        "It is a FIFO that no other process has open.",
    ),
    "a lock of a stranger": (
        MAIN, {"wait": HELD}, "waiting for the lock on the.lock", "main", "Held by vi (pid 99).",
    ),
    "a pipe of a stranger": (
        MAIN, {"wait": PIPE}, "reading from a pipe or socket of judge (pid 99)", "main", "",
    ),
    "a server": (
        (READ, *MAIN), {"wait": SERVER}, "waiting for an answer from 10.0.0.7:443", "ssl.read", "",
    ),
    "a lock that nobody is known to hold": (
        MAIN, {"wait": {"wait": "file_lock", "path": "x.lock", "complete": False}},
        "waiting for the lock on x.lock", "main", "Its holder is unknown.",
    ),
    "both ends are its own": (
        (READ, *MAIN), {"wait": {**SERVER, "others": [{"pid": 10, "start": 1, "name": "python"}]}},
        "waiting for an answer from 10.0.0.7:443", "ssl.read", "That is the process itself.",
    ),
    "a loop that polls": (
        MAIN, {"wait": {"wait": "sleep", "left_s": 1.0}, "polls": ["path", "/o/done"]},
        "sleeping again and again", "main", 'It polls. Its variable path is "/o/done".',
    ),
    "an input that is a pipe": (
        MAIN, {"waits_for_input": True, "wait": PIPE}, "waiting for input from judge (pid 99)",
        "main", "That process holds the other end of its standard input.",
    ),
    "an event": (
        ("wait (threading.py:355)", "wait (threading.py:655)", *MAIN),
        {"wait": MUTEX, "sealed": True}, "waiting for an event inside the process",
        "threading.wait", "No thread is left that could set it.",
    ),
    "its full standard error": (
        MAIN, {"wait": {**PIPE, "call": "write", "stream": 2}},
        "writing to its standard error (descriptor 2), a pipe or socket of judge (pid 99)",
        "main", "",
    ),
    "a terminal that was stopped": (
        MAIN, {"wait": {"wait": "terminal", "stream": 1}},
        "writing to its standard output (descriptor 1), a terminal", "main",
        "Ctrl-Q continues a stopped terminal.",
    ),
    "asleep": (
        MAIN, {"wait": {"wait": "sleep", "left_s": 100.0}}, "sleeping", "main",
        "The sleep ends in at most 1 min 40 s.",
    ),
    "a lock of its own, and nobody is left": (
        MAIN, {"wait": MUTEX, "sealed": True}, "waiting for a lock inside the process", "main",
        "No thread is left that could release it.",
    ),
    "a lock held at the fork": (
        MAIN, {"wait": {**MUTEX, "owner_lives": False}},
        "waiting for a lock that nobody can release", "main",
        "It was held at the fork by a thread that this process does not have.",
    ),
    "a terminal": (
        MAIN, {"waits_for_input": True}, "waiting for a person to type", "main",
        "Set the answer in advance for a run without one.",
    ),
    "inside the kernel": (
        MAIN, {"state": "D", "wait": {"wait": "disk", "function": "nfs_wait", "path": "/d"}},
        "waiting inside the kernel for /d (in nfs_wait)", "main", "No signal can reach it.",
    ),
    "a CUDA call that works, for all that is known": (
        SYNCHRONIZE, {"state": "R", "cpu_share": 0.9}, "computing, at 90% of a core",
        "torch.synchronize", "",
    ),
    "computing": (
        MAIN, {"state": "R", "cpu_share": 0.9}, "computing, at 90% of a core", "main", "",
    ),
}  # fmt: skip
"""Stack, facts, what it does, where, and a sentence on the object."""


@pytest.mark.parametrize("name", ALONE)
def test_one_process_and_its_object(name):
    stack, facts, doing, where, more = ALONE[name]
    found, words = told(process(10, *stack, **facts), since_s=41.0)
    sentence = f"rank 0 (pid 10) has been {doing} for 41 s in {where} (train.py:9). {more}"
    assert words == sentence.strip()
    assert (found.victims, found.unknown) == ((), ())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (process(10, *MAIN, state="T"),
         ("has been stopped by a signal from outside wtrain for 41 s. "
          "To continue it: kill -CONT 10")),
        (process(10, *SYNCHRONIZE, state="R", cpu_share=0.9, gpu=STUCK),
         ("waits for its GPU in torch.synchronize (train.py:9), for 41 s; the GPU is at 100 % "
          "and 22 % of its power limit: it runs a kernel that only waits; shared with pid 7 (vi, "
          "user alice).")),
        (process(10, *SYNCHRONIZE, gpu=GpuUse()),
         "waits for its GPU in torch.synchronize (train.py:9), for 41 s."),
    ],
)  # fmt: skip
def test_a_stopped_process_and_one_that_waits_for_its_gpu(given, expected):
    found, words = told(given, since_s=41.0)
    assert words == f"rank 0 (pid 10) {expected}"
    assert (found.victims, found.unknown) == ((), ())


ITEM = ("!cudaStreamSynchronize (libcudart.so)", "train (train.py:88)")


def waits_for_its_gpu(rank, **more):
    spins = {"state": "R", "cpu_share": 1.0, "how": "py-spy native", "gpu": STUCK, **more}
    return process(10 + rank, *ITEM, rank=rank, source="total += loss.item()", **spins)


def test_ranks_that_wait_for_their_gpus_alike():
    """Nobody is seen elsewhere: all are the root, with the call, the line and the GPUs."""
    found, words = told(*map(waits_for_its_gpu, range(4)), world_size=4, since_s=300.0)
    assert words == (
        "ranks 0-3 wait for their GPUs in cudaStreamSynchronize, called by loss.item() "
        "(train.py:88), for 5 min; the GPUs are at 100 % and 22 % of their power limit: "
        "they run a kernel that only waits, usually a collective that a rank has not entered; "
        "shared with pid 7 (vi, user alice)."
    )
    assert not found.victims


ELSEWHERE = {
    "in a lock": process(11, "wait (threading.py:1)", *MAIN, rank=1, wait=FIFO),
    "in a loop": process(11, *MAIN, rank=1, state="R", cpu_share=1.0, how="py-spy native"),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_rank_that_is_elsewhere_is_the_root_of_those_that_wait_for_their_gpus(where):
    found, words = told(
        *map(waits_for_its_gpu, (0, 2, 3)), ELSEWHERE[where], world_size=4, since_s=300.0
    )
    assert found.root.who.rank == 1
    assert {victim.who.rank for victim in found.victims} == {0, 2, 3}
    assert (
        "ranks 0 and 2-3 wait for rank 1 (pid 11) in cudaStreamSynchronize (train.py:88)" in words
    )


def test_a_rank_without_native_frames_is_not_called_elsewhere():
    """Inside a CUDA call it looks as if it computed."""
    busy = process(11, *MAIN, rank=1, state="R", cpu_share=1.0)
    found, _ = told(*map(waits_for_its_gpu, (0, 2, 3)), busy, world_size=4)
    assert found.root.who.rank != 1
    assert not found.victims


def test_the_flight_recorder_shows_which_rank_is_elsewhere():
    """All wait for their GPUs, and one of them has begun fewer collectives."""
    records = tuple(
        CollectiveFact(rank=n, group="0", seq=7 - (n == 2), op="ALLREDUCE",
                       last_enqueued=7 - (n == 2), last_completed=6)
        for n in range(4)
    )  # fmt: skip
    found, _ = told(*map(waits_for_its_gpu, range(4)), world_size=4, collectives=records)
    assert found.root.who.rank == 2
    assert {victim.who.rank for victim in found.victims} == {0, 1, 3}


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        (ITEM, "cudaStreamSynchronize"),
        (("!0x7f (libcuda.so)", "!cudaMemcpyAsync (libcudart.so)", *MAIN),
         "cudaMemcpyAsync"),
        (("!cuLaunchKernel (libcuda.so)", *MAIN), "cuLaunchKernel"),
        (("!cuModuleLoadData (libcuda.so)", "!cudaLaunchKernel (libcudart.so)", *MAIN),
         None),
        (("!cudaStreamSynchronize (libcudart.so)", "do_bench (triton/testing.py:3)", *MAIN),
         None),
        (("!cuCtxSynchronize (libcuda.so)", "_lazy_init (torch/cuda/__init__.py:1)", *MAIN),
         None),
        (("!ncclCommInitRankConfig (libnccl.so)", *MAIN), None),
        (MAIN, None),
    ],
)  # fmt: skip
def test_only_synchronisation_copies_and_launches_are_waits_for_a_device(frames, call):
    """Loading a module, compiling, measuring kernels and starting NCCL take long and are none."""
    assert device_call(ThreadStack(frames=frames_of(frames))) == call


def other(pid, rank, *main, **more):
    return process(pid, *main, rank=rank, **more)


def worker(pid, number, *main, **more):
    return process(pid, *main, role="worker", worker=number, ppid=10, **more)


CHAINS = {
    "a rank in a FIFO": (
        (process(10, *REDUCE), other(11, 1, *MAIN, wait=FIFO)),
        11, w.FileWait, {10}, "rank 0 waits for rank 1 (pid 11) in all_reduce (train.py:11).",
    ),
    "a worker asleep beside an idle one": (
        (process(10, *LOADER), worker(20, 0, *IDLE_WORKER), worker(21, 1, *FETCHING,
         wait={"wait": "sleep"})),
        21, w.SleepWait, {10},
        "rank 0 waits for rank 0's worker 1 (pid 21) to bring a batch (train.py:30).",
    ),
    "a rank behind a worker of another": (
        (process(10, *LOADER), other(11, 1, *REDUCE), worker(21, 1, *FETCHING, state="T")),
        21, w.Stopped, {10, 11}, "kill -CONT 21",
    ),
    "all workers idle": (
        (process(10, *LOADER), worker(20, 0, *IDLE_WORKER), worker(21, 1, *IDLE_WORKER)),
        10, x.BatchWait, set(), "rank 0 (pid 10) is waiting for a batch",
    ),
    "a child that sleeps": (
        (process(10, "wait (subprocess.py:1)", *MAIN,
                 wait={"wait": "child", "children": [{"pid": 30, "start": 1}]}),
         process(30, role="other", rank=None, ppid=10, name="sleep", wait={"wait": "sleep"})),
        30, w.SleepWait, {10}, "rank 0 waits for sleep (pid 30) to exit (train.py:9).",
    ),
    "a rank that is stopped": (
        (process(10, *REDUCE), other(11, 1, *MAIN, state="T")),
        11, w.Stopped, {10}, "rank 1 (pid 11) was stopped by a signal",
    ),
    "one rank still computes": (
        (process(10, *REDUCE), other(11, 1, *MAIN, state="R", cpu_share=0.8)),
        11, x.Computing, {10}, "rank 0 waits for rank 1 (pid 11) in all_reduce (train.py:11).",
    ),
    "an idle server beside a hung rank": (
        (process(10, *MAIN, wait=FIFO),
         process(30, role="other", rank=None, name="ray", wait={"wait": "tcp", "call": "accept"})),
        10, w.FileWait, set(), "rank 0 (pid 10) is opening",
    ),
    "an answer of an idle manager": (
        (process(10, *MAIN, wait={"wait": "pipe", "call": "read",
                                  "others": [{"pid": 30, "start": 1}]}),
         process(30, "accept (socket.py:1)", "serve_forever (multiprocessing/managers.py:1)",
                 role="other", rank=None, ppid=10)),
        10, w.PipeWait, set(), "rank 0 (pid 10) is reading from a pipe",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_ends_at_the_one_who_is_waited_for(name):
    processes, root, doing, victims, words = CHAINS[name]
    found, text = told(*processes)
    assert found.root.who.pid == root
    assert isinstance(found.root.doing, doing)
    assert {victim.who.pid for victim in found.victims} == victims
    assert words in text


def test_ranks_in_different_collectives_are_a_deadlock():
    broadcast = (REDUCE[0].replace("all_reduce", "broadcast"), *REDUCE[1:])
    both = (process(10, *REDUCE), other(11, 1, *broadcast))
    found, words = told(*both)
    assert [one.who.rank for one in found.knot] == [0, 1]
    assert words.startswith("ranks 0-1 wait for each other and nobody else can end it: a deadlock.")
    found, words = told(*both, world_size=3)
    assert found.knot == ()
    assert "Nothing was seen of rank 2." in words


def test_ranks_that_wait_for_one_of_which_nothing_was_seen_are_not_blamed():
    """As on one machine of several: who is missing is unknown, and no waiter is the root."""
    found, words = told(process(10, *REDUCE), other(11, 1, *REDUCE), world_size=4)
    assert found.root is None
    assert [unknown.ranks for unknown in found.unknown] == [((2, 3),)]
    assert words.startswith("Every rank that was seen waits for other ranks; which one is missing")
    assert (
        "ranks 0-1 are in all_reduce in torch.all_reduce (train.py:11). Not in it: ranks 2-3."
        in words
    )


BACKWARD = (
    "c10d::Reducer::finalize_backward (torch/lib/libtorch_cpu.so:0)",
    "_engine_run_backward (torch/autograd/graph.py:979)",
    "backward (torch/_tensor.py:623)",
    "step (train.py:16)",
)
BEGUN = CollectiveFact(rank=0, op="ALLREDUCE", seq=156, last_enqueued=156, last_completed=155)
DONE = CollectiveFact(rank=1, op="ALLREDUCE", seq=155, last_enqueued=155, last_completed=155)


@pytest.mark.parametrize(
    ("stack", "records", "words"),
    [
        (BACKWARD, (BEGUN, DONE), "allreduce number 156 of DDP's gradients, inside backward()"),
        (BACKWARD[1:], (BEGUN, DONE), "allreduce number 156, inside backward()"),
        (BACKWARD, (), "a collective of DDP's gradients, inside backward()"),
        (BACKWARD, (DONE,), "a collective of DDP's gradients, inside backward()"),
        (
            BACKWARD[1:],
            (BEGUN, msgspec.structs.replace(BEGUN, group="1", op="BROADCAST")),
            "a collective, inside backward()",
        ),
    ],
)
def test_the_operation_that_backward_hides_is_what_the_rank_recorded(stack, records, words):
    """Only one that it began and has not completed; several that differ tell none."""
    found, text = told(process(10, *stack), other(11, 1, *MAIN, wait=FIFO), collectives=records)
    assert found.root.who.rank == 1
    assert f"rank 0 waits for rank 1 (pid 11) in {words} (train.py:16)." in text


ASLEEP_IN_IT = {"wait": "sleep", "left_s": 3600.0}


@pytest.mark.parametrize(
    ("stack", "wait", "world", "words"),
    [
        (BACKWARD[1:], MUTEX, None, "waiting for a lock inside the process in torch.backward"),
        (BACKWARD[1:], MUTEX, 1, "waiting for a lock inside the process in torch.backward"),
        (BACKWARD[1:], MUTEX, 2, "in a collective, inside backward() in torch.backward"),
        (BACKWARD, MUTEX, None, "in a collective of DDP's gradients, inside backward()"),
        (BACKWARD[1:], ASLEEP_IN_IT, 2, "sleeping in torch.backward"),
    ],
)
def test_a_backward_pass_is_a_collective_only_with_a_process_group(stack, wait, world, words):
    """One process alone waits for nobody, and the kernel's sleep is no collective."""
    launcher = process(9, *MAIN, role="launcher", rank=None, wait={
        "wait": "child", "children": [{"pid": 10, "start": 1}],
    })  # fmt: skip
    found, text = told(process(10, *stack, ppid=9, wait=wait), launcher, world_size=world)
    assert not found.knot
    assert f"rank 0 (pid 10) is {words}" in text


SAVES = ("all_gather (torch/distributed/distributed_c10d.py:1)", "_write (train.py:36)")


def record(rank, op, begun=169):
    return CollectiveFact(rank=rank, op=op, seq=168, last_enqueued=begun, last_completed=167)


@pytest.mark.parametrize(
    ("records", "cause"),
    [
        ((record(0, "ALLGATHER"), record(1, "ALLREDUCE")), "different orders (first: rank 0 allg"),
        ((record(0, "ALLREDUCE"), record(1, "ALLREDUCE")), "may begin its operations in different"),
        ((record(0, "ALLREDUCE", 168), record(1, "ALLREDUCE", 168)), ""),
        ((), ""),
    ],
)
def test_two_threads_of_a_rank_in_collectives_are_both_named(records, cause):
    """That they share a group is said only where the records show it."""
    ranks = [
        threaded(process(at, *REDUCE, rank=at - 10), ("saver", at + 10, ASLEEP, *SAVES))
        for at in (10, 11)
    ]
    evidence = Evidence(why="stall", processes=tuple(ranks), collectives=records, world_size=2)
    found = judge(evidence)
    text = " ".join(sentences(found))
    assert "ranks 0-1 are in all_reduce" in text
    assert "Thread saver of ranks 0-1 is in all_gather in torch.all_gather (train.py:36)." in text
    assert cause in text
    assert ("process group at the same time" in text) is bool(cause)


def test_a_loader_worker_in_the_handler_of_a_signal_is_not_idle():
    """Below the handler it waits for orders; the handler, and the kernel's sleep, come first."""
    waiting = process(10, *LOADER)
    handler = ("on_signal (train.py:4)", *IDLE_WORKER)
    for stack, wait in ((handler, None), (IDLE_WORKER, ASLEEP_IN_IT)):
        asleep = process(20, *stack, role="worker", worker=0, ppid=10, wait=wait or MUTEX)
        _, text = told(waiting, asleep)
        assert "rank 0 waits for rank 0's worker 0 (pid 20) to bring a batch" in text, text
    _, text = told(waiting, process(20, *IDLE_WORKER, role="worker", worker=0, ppid=10))
    assert "waits for rank 0's worker" not in text


COMPLETE = (
    (w.Stopped(), True), (w.SleepWait(left_s=9.0), True), (x.End(signal=9), True),
    (w.FileWait(call="open", kind="fifo"), True), (w.FileWait(call="read"), False),
    (w.ChildWait(children=(w.ProcessRef(1, 1),)), True), (w.ChildWait(), False),
    (x.CollectiveWait(), False), (x.PythonLockWait(), False), (x.End(), False),
)  # fmt: skip


@pytest.mark.parametrize(("doing", "complete"), COMPLETE)
def test_a_fact_that_is_the_full_answer_has_no_unknown_cause_beside_it(doing, complete):
    root = x.Standstill(who=x.Who(pid=11, role="rank", rank=1), doing=doing)
    words = cause_words(x.Explanation(kind="hang", root=root))
    assert words == ("" if complete else "cause unknown")
    both = x.Explanation(kind="hang", knot=(root, root))
    assert cause_words(both) == ""


def test_a_rank_that_was_killed_is_the_root_of_a_hang():
    """The others wait for it in vain; the end is told with its sender."""
    evidence = evidence_of({"why": "stall", "processes": [process(10, *REDUCE)]})
    ended = gone(1, 100.0, signal=9)
    none = HostFacts(oom_kills=0, oom_since_start=True)
    both = msgspec.structs.replace(evidence, processes=(*evidence.processes, ended), host=none)
    found = explain(Chains(both))
    words = sentences(found)
    assert words[0] == "rank 1 (pid 11) was killed by SIGKILL from outside wtrain at step 25."
    assert words[1] == "rank 0 waits for rank 1 (pid 11) in all_reduce (train.py:11)."
    assert found.kind == "crash"


FIFO_RANK = process(10, "wait (threading.py:1)", *MAIN, wait=FIFO, how="py-spy native")


@pytest.mark.parametrize(
    ("given", "families"),
    [
        (process(10, *MAIN, state="T"), {None}),
        (process(10, *MAIN, wait=FIFO, owns_gil=True), {None}),
        (process(10, *MAIN, waits_for_input=True), {"waiting-for-input"}),
        (process(10, "acquire (filelock/_api.py:1)", *MAIN, wait=HELD), {"file-lock"}),
    ],
)
def test_a_family_never_contradicts_what_was_observed(given, families):
    evidence = evidence_of({"why": "stall", "processes": [given]})
    found = judge(evidence)
    assert found.family in families
    assert found.family is not None or found.remedies == ()


def test_a_full_shared_memory_is_a_ground_of_its_own():
    evidence = evidence_of({"why": "stall", "processes": [process(10, *MAIN, wait=FIFO)]})
    full = msgspec.structs.replace(evidence, host=HostFacts(shm_used_share=0.99))
    found = judge(full)
    assert ("bigger-shm", "fact") in [(one.name, one.by) for one in found.remedies]


STACKS = (REDUCE, LOADER, FETCHING, IDLE_WORKER, MAIN, (*SAVE, *MAIN), ())
_SEEN = (FIFO, HELD, PIPE, SERVER, {"wait": "sleep"}, MUTEX)
WAITS = ({}, *({"wait": wait} for wait in _SEEN))
_PROCESS = st.builds(
    lambda pid, stack, wait, role, rank, ppid, state: process(
        pid, *stack, role=role, rank=rank, ppid=ppid, state=state, **wait
    ),
    st.integers(2, 9), st.sampled_from(STACKS), st.sampled_from(WAITS),
    st.sampled_from(["rank", "worker", "other", "launcher"]),
    st.one_of(st.none(), st.integers(0, 3)), st.integers(1, 9), st.sampled_from("SRDTZX"),
)  # fmt: skip


@given(
    st.lists(_PROCESS, max_size=6, unique_by=lambda one: one["pid"]),
    st.sampled_from(["stall", "crash", "manual"]),
    st.one_of(st.none(), st.integers(1, 5)),
)
@settings(max_examples=150, deadline=None)
def test_it_is_total_and_blames_no_victim(processes, why, world_size):
    evidence = evidence_of({"why": why, "processes": processes})
    found = judge(msgspec.structs.replace(evidence, world_size=world_size))
    assert all(sentences(found))
    assert what_happened(found)
    victims = {victim.who.pid for victim in found.victims}
    blamed = {one.who.pid for one in (*found.knot, *found.also)}
    if found.root is not None:
        blamed.add(found.root.who.pid)
    assert not victims & blamed
    back = msgspec.json.decode(msgspec.json.encode(found), type=x.Explanation)
    assert back == found


def test_nothing_at_all():
    found = judge(Evidence(why="stall"))
    assert sentences(found) == ("Nothing in the evidence tells who stands still.",)


def threaded(*threads):
    """A rank with these other threads: name, id, wait, frames."""
    [rank] = evidence_of({"why": "stall", "processes": [threads[0]]}).processes
    facts, stacks = {}, list(rank.threads)
    for name, tid, wait, *frames in threads[1:]:
        stacks.append(ThreadStack(frames=frames_of(frames, None), name=name, os_id=tid))
        fact = w.ThreadFact(tid=tid, name=name, state="S", switches=1, wait=wait)
        facts[tid] = fact
    return msgspec.structs.replace(rank, threads=tuple(stacks), thread_waits=facts)


JOINS = process(10, "join (threading.py:1)", *MAIN, wait=MUTEX)
QUEUES = process(10, "get (queue.py:1)", *MAIN, wait=MUTEX)
EVENTS = process(
    10, "wait (threading.py:1)", "Event.wait (threading.py:2)", *MAIN,
    wait=MUTEX,
)  # fmt: skip
ASLEEP = w.SleepWait(left_s=3600.0)
UPLOADS = ("uploader", 21, ASLEEP, "upload (train.py:4)")
THREADS = {
    "a join": (
        (JOINS, UPLOADS),
        ("rank 0 (pid 10) is waiting for its thread uploader in threading.join (train.py:9). "
         "Its thread uploader is sleeping in upload (train.py:4). The sleep ends in at most 1 h."),
    ),
    "a queue": (
        (QUEUES, UPLOADS),
        ("rank 0 (pid 10) is waiting for a queue in queue.get (train.py:9). "
         "Its only other thread at work, uploader, is sleeping in upload (train.py:4). "
         "The sleep ends in at most 1 h."),
    ),
    "an event, and a thread that may have nothing to do with it": (
        (EVENTS, UPLOADS),
        ("rank 0 (pid 10) is waiting for a Python event in threading.wait (train.py:9). "
         "Python does not record who could set it. "
         "Its only other thread at work, uploader, is sleeping in upload (train.py:4). "
         "The sleep ends in at most 1 h."),
    ),
    "a join of one of several": (
        (JOINS, UPLOADS, ("other", 22, *UPLOADS[2:])),
        ("rank 0 (pid 10) is waiting for a thread in threading.join (train.py:9). "
         "Threads uploader and other of rank 0 are sleeping in upload (train.py:4). "
         "The sleep ends in at most 1 h. "
         "Who could end the wait of rank 0 (pid 10) is unknown."),
    ),
    "a thread that waits for the one that waits for it": (
        (JOINS, ("uploader", 21, w.MutexWait(address=2, owner_tid=10), "upload (train.py:4)")),
        ("2 threads of rank 0 (pid 10) wait for each other and nobody else can end it: a "
         "deadlock. rank 0 (pid 10) is waiting for a thread in threading.join (train.py:9). "
         "rank 0 (pid 10) is waiting for a lock inside the process in upload (train.py:4). "
         "Held by its own thread 10. This is its thread uploader."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THREADS)
def test_a_wait_for_a_thread_says_what_that_thread_does(name):
    """The line that waits is the headline; the other thread is blamed only where that is known."""
    threads, expected = THREADS[name]
    evidence = Evidence(why="stall", processes=(threaded(*threads),))
    found = explain(Chains(evidence))
    assert " ".join(sentences(found)) == expected


ENDS = {
    "outside": (
        x.End(signal=9, sender="outside"), "was killed by SIGKILL from outside wtrain at step 25.",
    ),
    "the kernel": (
        x.End(signal=9, sender="oom-killer"),
        "was killed by the kernel's OOM killer at step 25.",
    ),
    "wtrain": (x.End(signal=15, sender="wtrain"), "was killed by wtrain, with SIGTERM at step 25."),
    "another process of the training": (
        x.End(signal=15, sender="member"),
        "was killed by SIGTERM from another process of the training at step 25.",
    ),
    "its own crash": (x.End(signal=11), "crashed with SIGSEGV at step 25."),
    "a code": (x.End(code=3), "exited with code 3 at step 25."),
    "an exception": (
        x.End(
            code=1,
            raised=ExceptionFact(
                type="RuntimeError", message="shapes cannot be multiplied", source="hook",
                own=CodePlace(file="/home/u/crash50.py", line=6, function="step"),
            ),
        ),
        "raised RuntimeError at crash50.py:6, step 25: shapes cannot be multiplied",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_how_a_rank_ended(name):
    end, expected = ENDS[name]
    root = x.Standstill(who=x.Who(pid=11, role="rank", rank=1), doing=end, step=25)
    found = x.Explanation(kind="crash", root=root)
    assert what_happened(found) == f"rank 1 (pid 11) {expected}"


def test_a_process_without_a_line_of_its_own_shows_its_command():
    _, words = told(
        process(10, "wait (subprocess.py:1)", *MAIN,
                wait={"wait": "child", "children": [{"pid": 30, "start": 1}]}),
        process(30, role="other", rank=None, ppid=10, name="rsync", wait={"wait": "sleep"},
                command=["rsync", "-a", "out", "host:"]),
    )  # fmt: skip
    assert words == (
        "rsync (pid 30) is sleeping. Its command is `rsync -a out host:`. "
        "rank 0 waits for rsync (pid 30) to exit (train.py:9)."
    )
