"""A crash: read from a traceback, told in one line, compared with the one before, answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.core.test_first_failure import gone
from tests.core.test_ladder import changed, found, history, step
from tests.support import REPOSITORY
from watchdog_train.core.diagnosis import facts as f
from watchdog_train.core.diagnosis.crash import crash_of, named_path, with_senders
from watchdog_train.core.events import GivenUp
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import CodePlace, CrashFact, ExceptionFact, ExitStatus, RankEnd
from watchdog_train.core.recovery.crashes import ROWS, Crash, most_repeats, row_of
from watchdog_train.core.recovery.ladder import Restart
from watchdog_train.evidence.exceptions import of_elastic
from watchdog_train.evidence.tracebacks import exceptions, is_wrapper, last_of
from watchdog_train.report.explanation_text import crash_words
from watchdog_train.report.why_text import why_text


def raised(type_: str, message: str = "", *, line: int = 49, **more: Any) -> CrashFact:
    place = CodePlace(file="/home/me/train.py", line=line, function="step", own=True)
    fact = ExceptionFact(type=type_, message=message, own=place, source="hook")
    return CrashFact(exception=fact, code=1, **more)


def test_what_became_of_a_long_command_is_not_cut() -> None:
    """subprocess tells the command first, and its end last."""
    said = f"subprocess.CalledProcessError: Command '{'x' * 900}' died with <Signals.SIGKILL: 9>."
    shown = crash_words(CrashFact(code=1, said=said))
    assert shown.endswith("died with <Signals.SIGKILL: 9>.")
    assert len(shown) < 400


def crash(fact: CrashFact, *, began: bool = True, repeated: int = 0, **more: Any) -> Crash:
    return Crash(fact=fact, began=began, repeated=repeated, **more)


USAGE = "train.py: error: unrecognized arguments: --epoch"
ANSWERS: list[tuple[Crash, str]] = [
    (crash(raised("SyntaxError", "invalid syntax"), began=False), "stop"),
    (crash(raised("ModuleNotFoundError", "No module named 'x'"), began=False), "stop"),
    (crash(raised("ModuleNotFoundError", "No module named 'x'")), "once"),
    (crash(CrashFact(code=2, said=USAGE), began=False), "stop"),
    (crash(CrashFact(code=2, said=USAGE), began=False, resume_added=True), "once"),
    (crash(CrashFact(code=2, said=USAGE)), "once"),
    (crash(CrashFact(code=2, said="python: can't open file 'x.py'"), began=False), "stop"),
    (crash(raised("ImportError", "libcudnn.so.9: cannot open shared object file")), "once"),
    (crash(raised("torch.OutOfMemoryError", "CUDA out of memory.", gpu_shared=True)), "transient"),
    (crash(raised("torch.OutOfMemoryError", "CUDA out of memory.")), "once"),
    (crash(raised("ConnectionResetError", "[Errno 104] Connection reset by peer")), "transient"),
    (crash(raised("requests.exceptions.ReadTimeout", "Read timed out.")), "transient"),
    (crash(raised("requests.exceptions.HTTPError", "503 Server Error: x for url: y")), "transient"),
    (crash(raised("requests.exceptions.HTTPError", "404 Client Error: x")), "once"),
    (crash(raised("OSError", "[Errno 116] Stale file handle: '/nfs/a'")), "transient"),
    (crash(raised("OSError", "[Errno 98] Address already in use")), "transient"),
    (crash(raised("torch.distributed.DistBackendError", "NCCL error in: x.cpp")), "transient"),
    (crash(raised("FileNotFoundError", "[Errno 2] x: '/nfs/a'", network_path=True)), "transient"),
    (crash(raised("FileNotFoundError", "[Errno 2] x: '/tmp/a'")), "once"),
    (crash(CrashFact(signal=9, sender="outside")), "at-once"),
    (crash(CrashFact(signal=9, sender="oom-killer")), "at-once"),
    (crash(CrashFact(signal=15, sender="outside")), "at-once"),
    (crash(CrashFact(signal=11)), "once"),
    (crash(CrashFact(signal=6)), "once"),
    (crash(CrashFact(signal=6, said="terminate called: NCCL communicator aborted")), "transient"),
    (crash(CrashFact(signal=2)), "stop"),
    (crash(CrashFact(code=130)), "stop"),
    (crash(CrashFact(code=137)), "once"),  # no shell told it: a code as any other
    (crash(raised("RuntimeError", "size mismatch")), "once"),
    (crash(CrashFact(code=3)), "once"),
]


@pytest.mark.parametrize(("what", "reaction"), ANSWERS)
def test_the_table(what: Crash, reaction: str) -> None:
    assert row_of(what).reaction == reaction


def test_every_row_is_reached() -> None:
    assert {row_of(what).what for what, _ in ANSWERS} == {row.what for row in ROWS}


def test_the_table_of_the_documentation() -> None:
    page = (REPOSITORY / "docs" / "how-it-decides.md").read_text("utf-8")
    table = "\n".join(f"| {row.what} | {row.reaction} |" for row in ROWS)
    assert f"| what | reaction |\n|---|---|\n{table}\n" in page


def test_how_often() -> None:
    """Once, three times for what ends by itself, and not at all for a bug of the script."""
    bug, lost = raised("RuntimeError"), raised("ConnectionError", "Connection refused")
    assert [most_repeats(crash(fact)) for fact in (bug, lost)] == [0, 2]
    assert most_repeats(crash(raised("SyntaxError"), began=False)) == -1
    lives = [isinstance(step(crashed(*["exit1@50"] * n, fact=lost)), Restart) for n in (3, 4)]
    assert lives == [True, False]


SAME = [
    (raised("E", "shape (2, 3) at 0x7f"), raised("E", "shape (4, 31) at 0x8c"), True),
    (raised("E", "no file /run/1/a.pt"), raised("E", "no file /run/2/b.pt"), True),
    (raised("E", "x"), raised("E", "x", line=50), False),
    (raised("E", "x"), raised("F", "x"), False),
    (CrashFact(signal=11), CrashFact(signal=11), True),
    (CrashFact(signal=11), CrashFact(signal=9), False),
    (CrashFact(code=3, said="bad 7"), CrashFact(code=3, said="bad 8"), True),
    (CrashFact(code=3, said="bad"), CrashFact(code=4, said="bad"), False),
]


@pytest.mark.parametrize(("one", "other", "same"), SAME)
def test_the_key(one: CrashFact, other: CrashFact, same: bool) -> None:
    assert (one.key == other.key) is same


def crashed(*rows: str, fact: CrashFact | None = None) -> State:
    return changed(history(*rows), crash=fact or raised("RuntimeError", "size mismatch"))


def test_the_same_twice_ends_with_the_childs_code() -> None:
    answer = step(crashed("exit1@50", "exit1@50"))
    assert (answer.exit_code, answer.outcome) == (1, "failed")
    assert "RuntimeError at train.py:49, step 50: size mismatch" in why_text(answer.why)
    assert isinstance(step(crashed("exit1@50")), Restart)


def test_a_newer_checkpoint_makes_it_another_matter() -> None:
    state = crashed("exit1@50", "exit1@60 <40")
    assert isinstance(step(state, survey=found(50)), Restart)
    assert isinstance(step(state, survey=found(40)), GivenUp)


def test_a_first_restart_waits_for_nothing_and_a_second_without_a_gain_does() -> None:
    lost = raised("ConnectionError", "Connection refused")
    for fact in (raised("RuntimeError"), CrashFact(signal=9, sender="outside"), lost):
        answer = step(crashed("exit1@50", fact=fact))
        assert answer.delay_s == 0.0, fact
    answer = step(crashed("exit1@50", "exit1@50", fact=lost))
    assert answer.delay_s == 2.0


TRACE = 'Traceback (most recent call last):\n  File "/home/me/train.py", line {line}, in {name}\n'
OWN = TRACE.format(line=49, name="step") + "    loss = model(batch)\n"
SITE = '  File "/venv/lib/python3.11/site-packages/torch/nn/linear.py", line 125, in forward\n'
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 9, in main
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 7, in work
    | OSError: no sample
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 8, in other
    | ValueError: bad
    +------------------------------------
"""
TEXTS = {
    "the user's frame above a library's": (
        OWN + SITE + "RuntimeError: size mismatch\n",
        "RuntimeError at train.py:49: size mismatch",
    ),
    "a rank's prefix": (
        "".join(f"[rank1]: {line}\n" for line in (OWN + "ValueError: bad").splitlines()),
        "ValueError at train.py:49: bad",
    ),
    "what says more in its next line": (
        OWN + "RuntimeError: Error(s) in loading for N:\n\tsize mismatch for w\n",
        "RuntimeError at train.py:49: Error(s) in loading for N: size mismatch for w",
    ),
    "a DataLoader worker": (
        OWN
        + "OSError: Caught OSError in DataLoader worker process 3.\nOriginal "
        + TRACE.format(line=7, name="__getitem__")
        + "OSError: no sample\n",
        "OSError at train.py:7 in DataLoader worker 3: no sample",
    ),
    "torch.multiprocessing": (
        OWN
        + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        + "-- Process 0 terminated with the following error:\n"
        + TRACE.format(line=7, name="work")
        + "OSError: no sample\n\n",
        "OSError at train.py:7: no sample",
    ),
    "an exception that led to another": (
        OWN + "KeyError: 'a'\n" + CAUSE + TRACE.format(line=9, name="main") + "RuntimeError: b\n",
        "RuntimeError at train.py:9: b; after KeyError: 'a'",
    ),
    "a launcher after its rank": (
        OWN
        + "ValueError: bad\n"
        + TRACE.format(line=1, name="run")
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\n",
        "ValueError at train.py:49: bad",
    ),
    "a script that does not parse": (
        '  File "/home/me/train.py", line 3\n    f(:\n      ^\nSyntaxError: invalid syntax\n',
        "SyntaxError at train.py:3: invalid syntax",
    ),
    "the first of a group": (GROUP, "OSError at train.py:7: no sample"),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_what_a_text_tells(text: str, words: str) -> None:
    fact = last_of(exceptions(text, "output"))
    assert fact is not None
    assert not is_wrapper(fact)
    assert crash_words(CrashFact(exception=fact)) == f"the training raised {words}"


def test_a_text_is_untrusted() -> None:
    """Neither terminal sequences nor secrets of a message get further."""
    (fact,) = exceptions(
        OWN + "ValueError: \x1b[31mHF_TOKEN=hf_abcdefghijklmnopqrst\x07\n", "output"
    )
    assert fact.message == "HF_TOKEN=[removed]"
    assert exceptions(OWN + "something else went wrong\n", "output") == ()
    assert named_path(fact) is None


def test_the_error_file_of_torch_elastic(tmp_path: Path) -> None:
    file = tmp_path / "elastic-error.json"
    assert of_elastic(str(tmp_path)) is None
    said = {"message": {"message": "x", "extraInfo": {"py_callstack": OWN + "ValueError: bad\n"}}}
    file.write_text(json.dumps(said))
    fact = of_elastic(str(tmp_path))
    assert (fact.type, fact.source) == ("ValueError", "elastic")
    for broken in ("{", '{"message": "killed"}', "[]", '{"message": {"extraInfo": 3}}'):
        file.write_text(broken)
        assert of_elastic(str(tmp_path)) is None


def rank(number: int, *, at: float, **end: Any) -> f.ProcessEvidence:
    known = RankEnd(
        pid=100 + number, start=1, rank=number, world_size=2, step=20, phase="train", at=at, **end
    )
    return f.ProcessEvidence(
        pid=known.pid,
        start=1,
        ppid=1,
        role="rank",
        rank=number,
        ended=f.EndFact(end=known, at_unix=at),
    )


LAUNCHER = f.ProcessEvidence(pid=1, start=1, ppid=0, role="launcher")
COUNTED, ONE_KILL = (f.HostFacts(oom_kills=kills, oom_since_start=True) for kills in (0, 1))
KERNEL = f.LogText(
    source="kernel", lines=("Out of memory: Killed process 101 (python) total-vm:1kB",)
)


@pytest.mark.parametrize(
    ("logs", "host", "sender", "words"),
    [
        ((), COUNTED, "outside", "SIGKILL from outside wtrain at step 20"),
        ((), f.HostFacts(), "unknown", "SIGKILL, which wtrain did not send"),
        ((KERNEL,), COUNTED, "oom-killer", "the kernel's OOM killer"),
        ((), ONE_KILL, "oom-killer", "the kernel's OOM killer"),
    ],
)
def test_who_sent_the_signal(
    logs: tuple[f.LogText, ...], host: f.HostFacts, sender: str, words: str
) -> None:
    """Of the rank that was killed first; the launcher ends the others, who raise for want of it."""
    raises = raised("RuntimeError", "Connection closed by peer").exception
    victim = replace(rank(0, at=6.0, signal=15), exception=raises)
    found = with_senders((LAUNCHER, victim, rank(1, at=5.0, signal=9)), logs, host)
    assert [one.ended.sender for one in found if one.ended] == ["member", sender]
    evidence = f.Evidence(why="crash", processes=found, logs=logs, host=host)
    fact = crash_of(evidence, ("torchrun",), gpu_shared=False)
    assert fact.exception is None
    assert crash_words(fact).startswith(f"rank 1 was killed by {words}")


def test_the_first_exception_counts() -> None:
    ours = replace(
        rank(1, at=5.0, code=1, said="exception"), exception=raised("ValueError", "bad").exception
    )
    later = replace(
        rank(0, at=6.0, code=1, said="exception"), exception=raised("OSError").exception
    )
    fact = crash_of(f.Evidence(why="crash", processes=(later, ours)), (), gpu_shared=False)
    assert fact is not None
    assert crash_words(fact) == "rank 1 raised ValueError at train.py:49, step 20: bad"


@pytest.mark.parametrize(
    ("command", "code", "signal"),
    [(("bash", "train.sh"), None, 9), (("python", "train.py"), 137, None)],
)
def test_137_is_a_signal_where_a_shell_tells_it(
    command: tuple[str, ...], code: int | None, signal: int | None
) -> None:
    exit_ = ExitStatus(code=137, signal=None, how_known="keeper")
    fact = crash_of(f.Evidence(why="crash", exit=exit_), command, gpu_shared=False)
    assert (fact.code, fact.signal) == (code, signal)


def test_without_a_traceback_the_last_line_is_the_message() -> None:
    logs = (
        f.LogText(source="stdout.log", lines=("epoch 3",)),
        f.LogText(source="stderr.log", lines=("no license", "")),
    )
    exit_ = ExitStatus(code=3, signal=None, how_known="keeper")
    fact = crash_of(f.Evidence(why="crash", exit=exit_, logs=logs), (), gpu_shared=False)
    assert fact is not None
    assert crash_words(fact) == "the training exited with code 3: no license"


@pytest.mark.parametrize(
    "line", ["=" * 60, "[rank2]: RuntimeError: Connection closed by peer [10.99.0.2]:30893"]
)
def test_a_launchers_report_and_another_ranks_line_are_no_message(line: str) -> None:
    ended = gone(3, 100.0, code=3)
    logs = (f.LogText(source="stderr.log", lines=("epoch 3", line)),)
    fact = crash_of(f.Evidence(why="crash", processes=(ended,), logs=logs), (), gpu_shared=False)
    assert fact is not None
    assert crash_words(fact) == "rank 3 exited with code 3 at step 25"
