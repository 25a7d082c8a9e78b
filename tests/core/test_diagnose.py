from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from watchdog_train.cli import main
from watchdog_train.core.diagnosis import facts as f
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack
from watchdog_train.core.model import ExitStatus
from watchdog_train.core.model.explanation import Silence
from watchdog_train.core.model.waits import Wait
from watchdog_train.core.policy import WaitLimits
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.explain.cause import OBJECTS, SIGNALS, Family, proven
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.families import ORDER, known_families
from watchdog_train.explain.judge import judge
from watchdog_train.explain.messages import MESSAGES
from watchdog_train.explain.patience import judge as patience_of
from watchdog_train.report.explanation_text import because, what_happened

CASES = sorted((Path(__file__).parents[1] / "golden" / "evidence").glob("*.json"))
CERTAINTIES = ("possible", "likely", "proven")
FRAME = re.compile(r"(!?)(.+?) \((.+?)(?::(\d+))?\)\Z")


def frames_of(texts, source=None):
    frames = []
    for text in texts:
        native, function, file, line = FRAME.match(text).groups()
        frames.append(Frame(function=function, file=file, line=int(line or 0), native=bool(native)))
    if source:
        at = next(n for n, frame in enumerate(frames) if not frame.native)
        frames[at] = replace(frames[at], source=source)
    return tuple(frames)


def evidence_of(case, shift=0):
    processes = []
    for given in case["processes"]:
        entry = dict(given)
        texts, source = entry.pop("main", None), entry.pop("source", None)
        entry["pid"] += shift
        entry["ppid"] += shift if entry["ppid"] else 0
        threads = ()
        if texts is not None:
            threads = (ThreadStack(frames=frames_of(texts, source), main=True, os_id=entry["pid"]),)
            gil = entry.pop("owns_gil", False)
            threads = (replace(threads[0], owns_gil=gil),)
        if "wait" in entry:
            entry["wait"] = msgspec.convert(entry["wait"], Wait)
        how = entry.pop("how", "py-spy" if threads else None)
        processes.append(f.ProcessEvidence(start=1, threads=threads, how=how, **entry))
    end = case.get("exit")
    status = None
    if end:
        status = ExitStatus(code=end.get("code"), signal=end.get("signal"), how_known="keeper")
    logs = (f.LogText(source="output.log", lines=tuple(case["log"])),) if "log" in case else ()
    return f.Evidence(why=case["why"], processes=tuple(processes), logs=logs, exit=status)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_hand_written_evidence_gets_the_family_it_was_written_for(path):
    """Each file states what evidence must be called, and how sure one may be at most."""
    case = json.loads(path.read_text())
    expect = case["expect"]
    found = judge(evidence_of(case))
    if "family" in expect:
        assert found.family == expect["family"], found
    assert found.family != expect.get("not_family", "-")
    assert found.kind == expect.get("kind", found.kind)
    sure = CERTAINTIES.index(found.because.certainty if found.because else "possible")
    assert CERTAINTIES.index(expect.get("at_least", "possible")) <= sure
    assert sure <= CERTAINTIES.index(expect.get("at_most", "proven"))
    if "culprit" in expect:
        assert found.root.who.pid == expect["culprit"]
    if "first_remedy" in expect:
        assert found.remedies[0].name == expect["first_remedy"]
    assert expect.get("says", "") in what_happened(found)


def test_a_line_that_looks_like_a_placeholder_is_only_text():
    line = "CUDA out of memory {others} {who.__class__}"
    host = f.HostFacts(gpu_others=("alice",))
    logs = (f.LogText(source="o", lines=(line,)),)
    text = because(judge(f.Evidence(why="crash", logs=logs, host=host)))
    assert line in text
    assert "alice" in text


BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:1)", "main (train.py:9)")


def two_ranks(main, **of_rank_1):
    """Rank 0 waits for others in a backward pass; rank 1 is at `main`."""
    where = {"state": "S", "cpu_share": 0.0, "wait": {"wait": "mutex", "address": 1}}
    processes = [
        {"pid": 10, "ppid": 1, "role": "rank", "rank": 0, "main": BACKWARD, **where},
        {"pid": 11, "ppid": 1, "role": "rank", "rank": 1, "main": main, **where},
    ]
    evidence = evidence_of({"why": "stall", "processes": processes})
    first, second = evidence.processes
    (thread,) = second.threads
    thread = replace(thread, owns_gil=of_rank_1.pop("owns_gil", False))
    second = replace(second, threads=(thread,), **of_rank_1)
    return replace(evidence, processes=(first, second))


def behind(rank):
    """What two ranks recorded, one of which has begun a collective less."""
    return tuple(
        f.CollectiveFact(rank=one, seq=7 - (one == rank), last_enqueued=7 - (one == rank))
        for one in (0, 1)
    )


@pytest.mark.parametrize(
    ("late", "family"), [(1, "rank-left-early"), (0, "rank-left-early"), (None, None)]
)
def test_records_count_for_more_where_the_stacks_agree(late, family):
    """Behind by its records and in no collective by its stack: two witnesses of one rank.

    Records that blame a rank which only waits by its stack count for nothing.
    """
    evidence = two_ranks(("load (train.py:3)", "main (train.py:9)"))
    alone = judge(evidence)
    assert (alone.family, alone.root.who.rank) == ("rank-left-early", 1)
    if late is None:
        return
    both = judge(replace(evidence, collectives=behind(late)))
    assert both.family == family
    assert (both.because.certainty == "likely") == (late == 1)
    assert "fewer collectives" in because(both) or late == 0


def test_who_reports_that_a_peer_is_gone_is_not_blamed():
    """Rank 0 prints what it suffers from; which rank has ended it does not know."""
    line = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    case = {"why": "crash", "processes": [], "log": [line], "exit": {"code": 1}}
    found = judge(evidence_of(case))
    assert (found.family, found.root.who.rank) == ("gloo-timeout", None)


def test_a_holder_of_the_interpreter_lock_that_waits_for_a_native_lock():
    """That is why the others wait for this rank; one that only sleeps there may be anything."""
    locked = ("!pthread_mutex_lock (libc.so.6)", "!ffi_call (libffi.so.8)", "go (train.py:3)")
    kernel = {"owns_gil": True, "wchan": "futex_do_wait"}
    found = judge(two_ranks(locked, **kernel))
    assert (found.family, found.root.who.rank) == ("gil-deadlock", 1)
    asleep = ("!clock_nanosleep (libc.so.6)", "!ffi_call (libffi.so.8)", "go (train.py:3)")
    found = judge(two_ranks(asleep, owns_gil=True, wchan="hrtimer_nanosleep"))
    assert (found.family, found.root.who.rank) == ("rank-left-early", 1)


def granted(evidence: f.Evidence) -> str:
    chains = Chains(evidence)
    return patience_of(chains, silence=Silence(), limits=WaitLimits()).row


def test_nothing_is_proven_of_ranks_that_exchange_collectives():
    """They went on between two looks: whatever the stacks look like, it is no deadlock."""
    case = json.loads((CASES[0].parent / "sealed_worker.json").read_text())
    evidence = evidence_of(case)
    assert granted(evidence) == "proven"
    alive = replace(evidence, exchanging=(0, 1))
    assert granted(alive) == "at-work"
    assert judge(alive).family is None


def test_a_rank_that_exchanges_is_not_the_one_that_hangs():
    """Others may be: a group within the job can go on without them."""
    asleep = ("!clock_nanosleep (libc.so.6)", "!ffi_call (libffi.so.8)", "go (train.py:3)")
    evidence = two_ranks(asleep, wchan="hrtimer_nanosleep")
    assert judge(evidence).family == "rank-left-early"
    for going, family in (((0,), "rank-left-early"), ((1,), None), ((0, 1), None)):
        found = judge(replace(evidence, exchanging=going))
        assert found.family == family, going


def test_no_evidence_at_all_is_not_known():
    evidence = f.Evidence(why="stall")
    assert (judge(evidence).family, granted(evidence)) == (None, "unknown")


NEAR_MISSES = json.loads((Path(__file__).parents[1] / "corpus" / "near_misses.json").read_text())


@pytest.mark.parametrize("family", ORDER)
def test_what_only_looks_like_a_family_is_not_called_so(family):
    """One near miss for each: a function's name alone, or words of a message alone, are nothing."""
    assert judge(evidence_of(NEAR_MISSES[family])).family != family


def test_each_error_message_is_a_row_of_the_table():
    """Of a family that there is, with a pattern that compiles; the table never reads prose."""
    known = {one.id for one in known_families()}
    assert len(MESSAGES) <= 80
    for row in MESSAGES:
        assert row.family in known
        assert len(row.pattern) <= 120, row.pattern
        assert re.compile(row.pattern, re.MULTILINE)


def test_each_family_has_a_place_in_the_order_and_a_sentence():
    """The order decides between families that are equally certain."""
    families = known_families()
    assert [one.id for one in families] == list(ORDER)
    assert len({one.id for one in families}) == len(families)
    for one in families:
        assert one.says
        assert set(one.of) <= {*OBJECTS, *SIGNALS, "any"}


def test_a_root_is_no_victim_and_a_hang_stands_still():
    """Whoever waits for the root is only spoken of as a waiter; one that moves does not hang."""
    evidence = two_ranks(("load (train.py:3)", "main (train.py:9)"))
    moved = replace(evidence.processes[1], changed=True)
    moving = replace(evidence, processes=(evidence.processes[0], moved))
    for victims, frame, given, family in (
        (False, "_engine_run_backward", evidence, "rank-left-early"),
        (True, "_engine_run_backward", evidence, "mine"),
        (False, "load", evidence, "mine"),
        (False, "load", moving, None),
    ):
        mine = Family(
            id="mine", kind="hang", says="mine", victims=victims,
            of_process=lambda _, process, at=frame: proven() if process.stack.passes(at) else None,
        )  # fmt: skip
        assert judge(given, families=(*known_families(), mine)).family == family, (victims, frame)


@pytest.mark.parametrize(
    ("size", "patience"), [(2, "proven"), (4, "unknown"), (None, "nobody-left")]
)
def test_ranks_in_different_collectives_are_proof_only_if_all_are_seen(size, patience):
    """The ranks of other nodes may be on their way: then the cause is named, and nobody acts."""
    processes = [
        {"pid": 10 + rank, "ppid": 1, "role": "rank", "rank": rank,
         "main": [f"{name} (torch/distributed/distributed_c10d.py:9)"]}
        for rank, name in enumerate(("all_reduce", "all_gather"))
    ]  # fmt: skip
    evidence = evidence_of({"why": "stall", "processes": processes})
    evidence = replace(evidence, world_size=size)
    assert judge(evidence).family == "collective-mismatch"
    assert granted(evidence) == patience


def test_a_line_about_the_network_is_no_proof_of_a_hang():
    """What libraries retry by themselves names a cause, and leaves them the time to do so."""
    line = "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443)"
    evidence = f.Evidence(why="stall", logs=(f.LogText(source="o", lines=("start", line)),))
    assert judge(evidence).family == "hub-download"
    assert granted(evidence) == "unknown"


@pytest.mark.parametrize(
    ("content", "reference"),
    [(None, "evidence-missing"), (b"", "evidence-empty"), (b"\0\1\2", "evidence-empty")],
)
def test_what_cannot_be_judged_is_refused_in_words(tmp_path, capsys, content, reference):
    """Nothing there, nothing in it, nothing readable in it: exit 78 and what to bring instead."""
    path = tmp_path / "given.txt"
    if content is not None:
        path.write_bytes(content)
    assert main.run(["diagnose", str(path)]) == 78
    words = capsys.readouterr().err
    assert reference in words
    assert "Traceback" not in words


TIMED_OUT = "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)"


@pytest.mark.parametrize(
    ("raised", "family"),
    [
        ("KeyError: 'labels'", None),
        ("torch.distributed.DistBackendError: " + TIMED_OUT[9:], "nccl-timeout-unattributed"),
    ],
)
def test_a_timeout_that_others_print_is_not_the_cause_of_an_exception(tmp_path, raised, family):
    """What one rank raised comes first; the timeout of another rank is its consequence."""
    path = tmp_path / "train.log"
    trace = f'Traceback (most recent call last):\n  File "/a/train.py", line 4, in f\n{raised}'
    path.write_text("\n".join([TIMED_OUT, *(f"[rank1]: {line}" for line in trace.splitlines())]))
    assert judge(read_inputs([str(path)]).evidence).family == family


def test_where_no_stack_could_be_taken_the_reason_is_the_answer():
    """Advice to take stacks would be of no use to somebody who has just tried."""
    process = f.ProcessEvidence(
        pid=7, start=3, ppid=1, role="other", name="sh", why_not="not a Python process (sh)"
    )
    found = judge(f.Evidence(why="manual", processes=(process,)))
    assert found.family is None
    assert what_happened(found) == (
        "sh (pid 7) is standing still. What it waits for could not be read."
    )


@pytest.mark.parametrize(
    ("host", "families"),
    [
        (f.HostFacts(), {"oom-killer"}),
        (f.HostFacts(oom_kills=3), {"oom-killer"}),
        (f.HostFacts(oom_kills=1, oom_since_start=True), {"oom-killer"}),
        (f.HostFacts(oom_kills=0, oom_since_start=True), {None, "unknown"}),
    ],
    ids=["not counted", "counted for ever", "counted", "counted, and none"],
)
@pytest.mark.parametrize(
    "log", ["torchrun: exitcode  : -9 (pid: 7)", "step 7 loss 0.3"], ids=["launcher", "alone"]
)
def test_a_kill_is_for_want_of_memory_only_where_that_can_be(host, families, log):
    """Somebody's `kill -9` is no reason to train with smaller batches."""
    evidence = evidence_of({"why": "crash", "processes": [], "log": [log], "exit": {"signal": 9}})
    evidence = msgspec.structs.replace(evidence, host=host)
    assert judge(evidence).family in families


@pytest.mark.parametrize("others", [(), ("pid 4242 (python, user alice) with 61.0 GB on GPU 0",)])
def test_memory_that_somebody_else_holds_is_no_want_of_ours(others):
    """Smaller batches are no answer to a neighbour: his name is, and another try first."""
    log = ["torch.OutOfMemoryError: CUDA out of memory."]
    evidence = evidence_of({"why": "crash", "processes": [], "log": log, "exit": {"code": 1}})
    evidence = msgspec.structs.replace(evidence, host=f.HostFacts(gpu_others=others))
    found = judge(evidence)
    remedies = [remedy.name for remedy in found.remedies]
    assert found.family == "cuda-oom"
    if others:
        assert "alice" in because(found)
        assert "not this training alone" in because(found)
        assert remedies[0] == "plain-retry"
    else:
        assert remedies == ["allocator-expandable", "batch-halve-accumulate"]
