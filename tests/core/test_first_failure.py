"""Who failed first is named also where nobody knows why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.test_diagnose import evidence_of
from watchdog_train.core import model as m
from watchdog_train.core.diagnosis import facts as f
from watchdog_train.core.diagnosis.collectives import not_come
from watchdog_train.core.diagnosis.crash import crash_of
from watchdog_train.core.diagnosis.log_lines import read_line
from watchdog_train.evidence.full_disk import full_disk
from watchdog_train.explain.judge import judge
from watchdog_train.report.explanation_text import crash_words, sentences

NO_KILL = f.HostFacts(oom_kills=0, oom_since_start=True)
TORCHRUN = (
    "E1105 elastic/api.py:882] failed (exitcode: -9) local_rank: 1 (pid: 11) of binary: python3",
    "Traceback (most recent call last):",
    "  exitcode  : -9 (pid: 11)",
    "  traceback : Signal 9 (SIGKILL) received by PID 11",
)


def gone(rank, at_unix, *, pid=None, **how):
    pid = 10 + rank if pid is None else pid
    end = m.RankEnd(
        pid=pid, start=1, rank=rank, world_size=4, step=25, phase="train", at=0.0, **how
    )
    return f.ProcessEvidence(
        pid=pid,
        start=1,
        ppid=9,
        role="rank",
        rank=rank,
        state="X",
        why_not="it ended",
        ended=f.EndFact(end=end, at_unix=at_unix),
    )


def crash(*processes, log=(), host=NO_KILL):
    """A launcher with exit code 1 whose ranks are gone."""
    return f.Evidence(
        why="crash",
        processes=processes,
        logs=(f.LogText(source="output.log", lines=tuple(log)),),
        exit=m.ExitStatus(code=1, signal=None, how_known="keeper"),
        host=host,
    )


def told(evidence):
    """Family, rank and words of the explanation; no rank where it names several."""
    found = judge(evidence)
    rank = found.root.who.rank if found.root and not (found.alike or found.also) else None
    return found.family, rank, " ".join(sentences(found))


def test_a_rank_that_was_killed_where_the_kernel_counted_no_memory_kill():
    """The first failure is named, its sender is left open, and no memory killer is blamed."""
    family, rank, words = told(
        crash(gone(0, 101.0, signal=15), gone(1, 100.0, signal=9), log=TORCHRUN)
    )
    assert (family, rank) == (None, 1)
    assert "rank 1 (pid 11) was killed by SIGKILL from outside wtrain at step 25." in words
    assert "rank 0 exited after rank 1 (pid 11)." in words


def test_the_same_kill_where_the_kernel_counted_one():
    counted = f.HostFacts(oom_kills=1, oom_since_start=True)
    ends = (gone(0, 101.0, signal=15), gone(1, 100.0, signal=9))
    family, rank, words = told(crash(*ends, host=counted))
    assert (family, rank) == ("oom-killer", 1)
    assert "rank 1" in words


@pytest.mark.parametrize(
    ("others", "rank"),
    [
        ({"code": 1}, 1),
        ({"signal": 15}, 1),
        ({"signal": 6}, 1),
        ({"code": 0}, 1),
        ({"signal": 9}, None),
        ({"signal": 11}, None),
    ],
)
def test_of_ends_in_one_look_a_kill_comes_before_what_follows_from_it(others, rank):
    """A peer that is gone makes the others raise or abort; two kills at once have no order."""
    ends = (gone(0, 100.0, **others), gone(1, 100.0, signal=9))
    assert told(crash(*ends))[1] == rank


def test_an_error_before_a_kill_was_first():
    """Launchers end with SIGKILL who does not end after SIGTERM."""
    family, rank, words = told(crash(gone(0, 130.0, signal=9), gone(1, 100.0, code=1)))
    assert (family, rank) == (None, 1)
    assert "rank 1 (pid 11) exited with code 1 at step 25." in words
    assert "wtrain" not in words


def test_what_only_the_launcher_tells_of_an_end():
    """Where its parent has taken the status from the kernel before anybody could look."""
    ends = (gone(0, 101.0, signal=15), gone(1, 100.0), gone(2, 99.0, code=0))
    assert told(crash(*ends, log=TORCHRUN))[:2] == (None, 1)
    assert "how is unknown" in told(crash(gone(1, 100.0), log=["nothing of it"]))[2]
    line = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with"
    killed = told(crash(gone(0, 101.0), gone(1, 100.0), log=[f"{line} signal SIGKILL"]))[2]
    assert killed.startswith("rank 1 (pid 11) was killed by SIGKILL")
    ended = told(crash(gone(0, 101.0), gone(1, 100.0), log=[f"{line} exit code 3"]))[2]
    assert "rank 1 (pid 11) exited with code 3" in ended


def test_a_native_crash_and_a_training_that_had_ended():
    """SIGSEGV is nobody's signal from outside; after a quiet end it is no failure at all."""
    _, rank, words = told(crash(gone(0, 100.0, signal=11)))
    assert rank == 0
    assert "rank 0 (pid 10) crashed with SIGSEGV at step 25." in words
    assert told(crash(gone(0, 100.0, signal=11, said="quiet")))[1] is None


def test_a_training_of_one_process_that_was_killed():
    case = {"why": "crash", "processes": [], "exit": {"signal": 9}}
    evidence = replace(evidence_of(case), host=NO_KILL)
    assert told(evidence)[2] == "the training was killed by SIGKILL from outside wtrain."


def meeting(*absent, seen=(), world_size=None):
    """Rank 0 waits at the store; these are elsewhere."""
    store = ("_create_c10d_store (torch/distributed/rendezvous.py:1)", "main (train.py:1)")
    stacks = dict.fromkeys((0, *seen), store)
    stacks |= {n: (f"warm_{n} (prepare.py:{n})", "main (train.py:1)") for n in absent}
    alike = {"ppid": 1, "role": "rank", "state": "S"}
    ranks = [{**alike, "pid": 10 + n, "rank": n, "main": main} for n, main in stacks.items()]
    evidence = evidence_of({"why": "stall", "processes": ranks})
    return replace(evidence, world_size=world_size)


def test_all_ranks_that_have_not_come_to_the_meeting_are_named():
    family, rank, words = told(meeting(1, 3, seen=(2,), world_size=6))
    assert (family, rank) == ("store-rendezvous", None)
    assert "rank 1 (pid 11) is standing still in warm_1 (prepare.py:1)" in words
    assert "rank 3 (pid 13) is standing still in warm_3 (prepare.py:3)" in words
    assert "Nothing was seen of ranks 4-5." in words


def test_very_many_ranks_that_have_not_come_are_counted():
    words = told(meeting(*range(1, 31)))[2]
    assert "and 27 more" in words
    assert len(words) < 1200


BARRIER = "store based barrier to initialize process group for rank: {}, key: k:1 (world_size=4, "


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        ([(0, 2), (3, 2)], (1, 2)),
        ([(0, 1), (3, 2)], (1, 2)),
        ([(0, 2)], ()),
        ([(0, 4), (1, 4), (2, 4), (3, 4)], ()),
        ([], ()),
    ],
)
def test_who_did_not_come_by_what_the_others_print(printed, missing):
    """Only where every one that came has printed it: else some output is missing."""
    lines = [f"Waiting in {BARRIER.format(rank)}worker_count={came})" for rank, came in printed]
    assert not_come((read_line(line), None) for line in lines) == missing


RAISED = m.ExceptionFact(type="RuntimeError", message="bad shape", source="hook", pid=10, at=100.0)
POINTS = replace(RAISED, message="a background worker has died")
PRINTED = m.ExceptionFact(type="BadZipFile", message="no zip", source="output", at=99.0)
OF_CHILD = replace(PRINTED, source="hook", pid=77)
CONSEQUENCES = {
    "it points to what another process printed": (POINTS, PRINTED, "BadZipFile"),
    "it points to nobody": (RAISED, PRINTED, None),
    "a child raised before it": (RAISED, OF_CHILD, "BadZipFile"),
    "a child raised after it": (RAISED, replace(OF_CHILD, at=100.2), None),
    "a child raised long before it": (RAISED, replace(OF_CHILD, at=50.0), None),
    "another thread of its process": (RAISED, replace(OF_CHILD, pid=10), None),
    "its own traceback in the output": (POINTS, replace(POINTS, source="output", pid=None), None),
}


@pytest.mark.parametrize("name", list(CONSEQUENCES))
def test_the_first_exception_is_named_before_its_consequence(name):
    raised, other, expected = CONSEQUENCES[name]
    rank = replace(gone(0, 100.5, code=1), exception=raised)
    found = crash_of(crash_with(rank, exceptions=(other,)), (), gpu_shared=False)
    assert found.exception == raised
    assert (found.first.type if found.first else None) == expected
    assert crash_words(found).startswith("first " if other is PRINTED and expected else "") is True


def crash_with(*processes, **changes):
    return replace(crash(*processes), **changes)


@pytest.mark.parametrize(("at", "expected"), [(98.9, None), (100.1, "BadZipFile")])
def test_a_handled_exception_in_the_output_is_no_crash(at, expected):
    """One that is older than the last step was handled; `os._exit` tells nothing."""
    printed = replace(PRINTED, at=at)
    logs = (f.LogText(source="stderr.log", lines=("BadZipFile: no zip", "KeyError: 'missing'")),)
    evidence = crash_with(
        gone(0, 101.0, code=7), exceptions=(printed,), progressed_at=100.0, logs=logs
    )
    found = crash_of(evidence, (), gpu_shared=False)
    assert (found.exception.type if found.exception else None) == expected
    assert found.said == ""


def in_script(file, function="<module>", **changes):
    frames = (
        m.CodePlace(file=file, line=9, function=function),
        m.CodePlace(file="/w/codec.py", line=5, function="decode"),
    )
    return replace(PRINTED, frames=frames, **changes)


HELPERS = {
    "its script, and it ended badly": (in_script("/w/codec.py"), "codec.py", {"code": 1}, True),
    "its module": (in_script("/w/codec.py"), "tools.codec", {"code": 1}, True),
    "its package": (in_script("/w/codec/__main__.py"), "codec", {"code": 1}, True),
    "how it ended is unknown": (in_script("/w/codec.py"), "sub/codec.py", {}, True),
    "it was killed": (in_script("/w/codec.py"), "codec.py", {"signal": 9}, False),
    "the script of another": (in_script("/w/train.py"), "codec.py", {"code": 1}, False),
    "a caught one of a function": (
        in_script("/w/codec.py", "decode"), "codec.py", {"code": 1}, False,
    ),
    "one of a thread": (
        in_script("/w/codec.py", thread="reader"), "codec.py", {"code": 1}, False,
    ),
    "no helper has ended": (in_script("/w/codec.py"), "", {}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", list(HELPERS))
def test_a_traceback_that_a_helper_without_hooks_has_printed_comes_first(name):
    """Where it begins in the helper's script: the rank may have logged what it handled."""
    printed, script, how, first = HELPERS[name]
    rank = replace(gone(0, 100.0, code=1), exception=RAISED)
    member = replace(WORKER, role="other", worker=None)
    helper = vanished(0.0, script=script, **how)
    end = replace(helper.ended.end, helper=member)
    helper = replace(helper, role="other", ended=replace(helper.ended, end=end))
    found = crash_of(crash_with(rank, helper, exceptions=(printed,)), (), gpu_shared=False)
    assert (found.first == printed) is first
    words = f"{script.rpartition('/')[2]} (helper of rank 0, pid 70) raised BadZipFile: no zip; "
    assert crash_words(found).startswith(f"{words}then rank 0 raised RuntimeError") is first


WORKER = m.Member(pid=70, start=1, role="worker", rank=0, worker=1, ppid=10, name="python")


def vanished(at, **how):
    end = m.RankEnd(
        pid=70, start=1, rank=0, world_size=None, step=None, phase="unknown", at=at, helper=WORKER,
        **how,
    )  # fmt: skip
    return f.ProcessEvidence(
        pid=70, start=1, ppid=10, role="worker", rank=0, worker=1, state="X",
        ended=f.EndFact(end=end, at_unix=99.0),
    )  # fmt: skip


@pytest.mark.parametrize(("raised", "at", "named"), [(RAISED, -1.0, True), (RAISED, 0.0, False),
                                                     (POINTS, 0.0, True)])  # fmt: skip
def test_a_helper_that_was_killed_is_named_before_the_rank(raised, at, named):
    """Ends of one look have no order: then the exception has to point to another process."""
    rank = replace(gone(0, 100.0, code=1), exception=raised)
    found = crash_of(crash_with(rank, vanished(at, signal=9)), (), gpu_shared=False)
    assert found.rank == 0
    assert (found.vanished is not None) is named
    words = (
        "rank 0's worker 1 (pid 70) was killed by SIGKILL, which wtrain did not send; then rank 0"
    )
    assert crash_words(found).startswith(words) is named


def test_a_line_that_is_only_quoted_names_no_cause():
    """Neither in the message nor in the source of the `raise`; printed twice, it counts."""
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    raised = replace(RAISED, quoted=f"Traceback (most recent call last):\n{line}")
    rank = replace(gone(0, 100.0, code=1), exception=raised)
    assert told(crash(rank, log=("RuntimeError: bad shape", line)))[0] is None
    assert told(crash(rank, log=(line, "RuntimeError: bad shape", line)))[0] == "cuda-oom"


SAVE = m.SaveRecord(path="/", format="torch", files={"a.pt": (1 << 62, 0)})
DISKS = {
    "unexpected pos": ("RuntimeError", "unexpected pos 264704 vs 264592", "bytes"),
    "says it itself": ("OSError", "[Errno 28] No space left on device", "bytes"),
    "quota": ("OSError", "[Errno 122] Disk quota exceeded: '/home/a/x.pt'", "bytes"),
    "a mistake in the code": ("TypeError", "cannot pickle module", None),
    "out of memory": ("torch.OutOfMemoryError", "CUDA out of memory", None),
}


@pytest.mark.parametrize("name", list(DISKS))
def test_a_save_that_fails_without_room_says_so(name, tmp_path):
    """Whatever the library says; an exception of the code has nothing to do with it."""
    kind, message, lacks = DISKS[name]
    fact = m.ExceptionFact(type=kind, message=message, source="hook", saving=str(tmp_path / "a.pt"))
    found = full_disk(fact, SAVE, str(tmp_path))
    assert (found.lacks if found is not None else None) == lacks
    if found is not None:
        told = crash_words(m.CrashFact(exception=fact, rank=0, disk=found))
        assert told.startswith(f"the disk is full at {tmp_path}/a.pt, ")


def test_a_failed_write_with_room_is_no_full_disk(tmp_path):
    fact = m.ExceptionFact(type="RuntimeError", message="unexpected pos", source="hook")
    inside = replace(fact, saving=str(tmp_path / "a.pt"))
    assert full_disk(inside, None, str(tmp_path)) is None
    assert full_disk(fact, SAVE, str(tmp_path)) is None
