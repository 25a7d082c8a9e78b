"""What a process raised and did not catch, as its client tells it: real scripts, no supervisor."""

from __future__ import annotations

import ast
import json
import stat
import sys
from pathlib import Path

import pytest

from tests.client_runs import Training, plain_environment
from tests.support import run_command
from watchdog_train.client import layout
from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack
from watchdog_train.core.model import CrashFact, ExceptionFact
from watchdog_train.evidence.exceptions import of_elastic, of_hooks, of_output
from watchdog_train.keeper import streams
from watchdog_train.report.explanation_text import crash_words

BEGIN = "import watchdog_train as wt\nwt.beat(1)\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n'
FAILS = "def fails(*_): raise ValueError('sample 7')\n"


def told(training: Training) -> tuple[ExceptionFact, ...]:
    return of_hooks(str(training.slot_dir), training.attempt, ())[1]


def run(training: Training, text: str) -> str:
    """What a script that has made a step prints to stderr."""
    return training.run(BEGIN + text).stderr


def test_the_main_thread(training: Training) -> None:
    """The line of the user, not of the library below it; only the user may read the file."""
    said = run(training, "import json\n\n\ndef load():\n    json.loads('{')\n\n\nload()\n")
    assert "JSONDecodeError" in said, said
    (fact,) = told(training)
    assert fact.type == "json.decoder.JSONDecodeError"
    assert (fact.own.line, fact.own.function) == (7, "load")
    assert fact.raised.file.endswith("decoder.py")
    assert (fact.source, fact.thread) == ("hook", "")
    assert fact.at is not None
    (path,) = training.slot_dir.glob("*.exception.json")
    assert path.name == f"{fact.pid}.exception.json"
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


QUIET = {
    "success": "print()\n",
    "sys.exit": "import sys\nsys.exit(3)\n",
    "caught": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n",
    "Ctrl-C": "raise KeyboardInterrupt\n",
}


@pytest.mark.parametrize("text", QUIET.values(), ids=QUIET)
def test_nothing_is_told_of_an_end_without_an_exception(text: str, training: Training) -> None:
    run(training, text)
    assert told(training) == ()


def test_the_users_own_hook_stays(training: Training) -> None:
    """One that is set after ours is called alone, and what it is called for is known to us, too."""
    said = run(
        training,
        "import sys\n"
        "sys.excepthook = lambda kind, error, trace: sys.stderr.write(f'mine: {error}\\n')\n"
        "raise ValueError('sample 7')\n",
    )
    assert said == "mine: sample 7\n"
    (fact,) = told(training)
    assert (fact.type, fact.message) == ("ValueError", "sample 7")


def test_a_thread(training: Training) -> None:
    """A thread that ends does not end its process; the hook that was there is called, too."""
    said = training.run(
        "import threading\n"
        "threading.excepthook = lambda args: print('mine', args.exc_value)\n"
        f"{BEGIN}{FAILS}"
        "one = threading.Thread(target=fails, name='loader')\none.start()\none.join()\n"
    )
    assert (said.stdout, said.stderr) == ("mine sample 7\n", "")
    (fact,) = told(training)
    assert fact.thread == "loader"


@pytest.mark.parametrize("first", ["watchdog_train", "multiprocessing"])
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_child_of_multiprocessing(method: str, first: str, training: Training) -> None:
    """Its bootstrap prints the exception and calls no hook."""
    imports = [BEGIN, "import multiprocessing\n"]
    ended = training.run(
        "".join(imports if first == "watchdog_train" else reversed(imports))
        + FAILS
        + "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    one = context.Process(target=fails)\n    one.start()\n    one.join()\n"
        "    print(one.exitcode)\n"
    )
    assert ended.stdout == "1\n", ended.stderr
    assert "ValueError: sample 7" in ended.stderr
    (fact,) = told(training)
    assert (fact.type, fact.message) == ("ValueError", "sample 7")


TORCH = {
    "DataLoader worker": (
        """
import torch

class Data:
    def __len__(self): return 4
    def __getitem__(self, i): raise OSError("sample %d" % i)

for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass
""",
        ("OSError", "sample 0", "__getitem__", 0),
    ),
    "torch.multiprocessing": (
        """
import torch.multiprocessing as mp

def work(i): raise OSError("sample %d" % i)

if __name__ == "__main__": mp.spawn(work, nprocs=1)
""",
        ("OSError", "sample 0", "work", None),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), TORCH.values(), ids=TORCH)
def test_what_torch_wraps(text: str, expected: tuple[object, ...], training: Training) -> None:
    """Worker and parent tell the same exception: that of the worker, at its own line."""
    ended = training.run(text)
    assert ended.returncode == 1, ended.stderr
    facts = told(training)
    assert facts
    for fact in facts:
        assert (fact.type, fact.message, fact.own.function) == expected[:3]
    assert facts[-1].worker == expected[3]


QUOTES = """
raise ValueError(NEWLINE.join(("the other host said:", "Traceback (most recent call last):",
    '  File "/srv/other.py", line 88, in go', "torch.OutOfMemoryError: CUDA out of memory")))
"""


def test_a_traceback_inside_a_message_is_only_quoted(training: Training) -> None:
    """The exception is the one that was raised, at the line that raised it."""
    run(training, "NEWLINE = chr(10)\n" + QUOTES)
    (fact,) = told(training)
    assert (fact.type, fact.message) == ("ValueError", "the other host said:")
    assert fact.own.file.endswith(".py")
    assert "torch.OutOfMemoryError: CUDA out of memory" in fact.quoted


def test_code_that_was_made_by_exec_is_not_the_users(training: Training) -> None:
    """As the methods of a dataclass are; the first cause of an exception is remembered."""
    cause = (
        "try:\n    {}['lr']\nexcept KeyError as error:\n    raise RuntimeError('no lr') from error"
    )
    run(training, f"def fails():\n    exec({cause!r})\nfails()\n")
    (fact,) = told(training)
    assert fact.own.file.endswith(".py")
    assert fact.raised.file == "<string>"
    assert (fact.type, fact.message) == ("RuntimeError", "no lr")
    assert [(one.type, one.message) for one in fact.chain] == [("KeyError", "'lr'")]


WAITS = """
import atexit, glob, json, os, threading, time, traceback
def wait_until_told():
    for _ in range(400):
        if found := glob.glob(os.environ["WTRAIN_SLOT_DIR"] + "/*.exception.json"):
            print(json.loads(open(found[0]).read())["stays"]["line"])
            break
        time.sleep(0.025)
"""
STAYS = {
    "an exit handler": ("atexit.register(wait_until_told)\nraise ValueError('bad')\n", "0"),
    "finally": ("try:\n    raise ValueError('bad')\nfinally:\n    wait_until_told()\n", "14"),
}


@pytest.mark.parametrize(("text", "line"), STAYS.values(), ids=STAYS)
def test_an_exception_is_told_while_its_process_lives(
    text: str, line: str, training: Training
) -> None:
    """Its supervisor must not wait for an end that does not come."""
    assert training.run(BEGIN + WAITS + text).stdout.split() == [line]


HANDLES = """
def main():
    try:
        step()
    except KeyError:
        again()
    except Exception:
        tidy()
        raise
    finally:
        barrier()
    with group():
        step()
"""


@pytest.mark.parametrize(
    ("line", "state", "stays"),
    [
        (0, "X", False),
        *((line, "S", True) for line in (0, 8, 11, 12)),
        *((line, "S", None) for line in (4, 6, 13)),
    ],
)
def test_who_handles_an_exception_has_not_failed(
    tmp_path: Path, line: int, state: str, stays: bool | None
) -> None:
    """Who only cleans up before it leaves has; None: the exception counts for nothing."""
    where = {"line": line, "file": "/work/train.py"}
    text = f"{TRACEBACK}ValueError: bad\n"
    content = {"attempt": 1, "rank": 0, "at": 5.0, "text": text, "stays": where}
    (tmp_path / "7.exception.json").write_text(json.dumps(content))
    frames = (Frame(function="main", file="/work/train.py", line=line),)
    process = ProcessEvidence(
        pid=7,
        start=1,
        ppid=1,
        role="rank",
        state=state,
        threads=(ThreadStack(name="MainThread", frames=frames, main=True),),
    )
    ((found,), _) = of_hooks(str(tmp_path), 1, (process,), tree=lambda _path: ast.parse(HANDLES))
    assert (found.exception.stays if found.exception is not None else None) is stays


def test_what_the_output_shows_has_its_time(tmp_path: Path) -> None:
    """A traceback that was handled before the last steps is left out."""
    log = tmp_path / "output.log"
    parts = ("step 1\n", f"{TRACEBACK}KeyError: 'old'\n", f"step 2\n{TRACEBACK}OSError: new\n")
    log.write_text("".join(parts))
    times = [(100, 0), (101, len(parts[0])), (160.5, len(parts[0] + parts[1]))]
    (tmp_path / "output.log.times").write_text("".join(f"{at} {size}\n" for at, size in times))
    assert [(f.type, f.at) for f in of_output([str(log)], 160.0)] == [("OSError", 160.5)]
    assert [f.type for f in of_output([str(log)], 102.0)] == ["KeyError", "OSError"]
    assert [f.type for f in of_output([str(log)], None)] == ["OSError"]


def test_a_traceback_is_timed_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other output has a time every ten seconds."""
    monkeypatch.setattr(streams, "TRACEBACKS_EVERY_S", 0.0)
    file = streams.CappedFile(str(tmp_path / "output.log"), 1 << 20)
    for text in ("step 1\n", "step 2\n", f"{TRACEBACK}KeyError: 1\n", "step 3\n"):
        file.append(text.encode())
    times = (tmp_path / "output.log.times").read_text().splitlines()
    assert [line.split()[1] for line in times] == ["0", "14"]


RECORDED = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main(): raise OSError("no sample")

main()
"""


@pytest.mark.slow
def test_the_error_file_of_torchrun(training: Training) -> None:
    """The launcher copies that of its rank, also where no client is in the rank."""
    file = training.attempt_dir / layout.ELASTIC_ERROR
    (training.root / "train.py").write_text(RECORDED, "utf-8")
    run_command(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "train.py"],
        cwd=training.root,
        env=plain_environment() | {"TORCHELASTIC_ERROR_FILE": str(file)},
        timeout_s=120,
        code=None,
    )
    fact = of_elastic(str(training.attempt_dir))
    assert fact is not None
    words = crash_words(CrashFact(exception=fact, rank=0))
    assert words == "rank 0 raised OSError at train.py:5: no sample"
