"""The stub and the client without torch: on every Python, silent, cheap, and never in the way."""

from __future__ import annotations

import ast
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.client_runs import INJECT, PACKAGE, Training, plain_environment, run_script
from tests.support import interpreter, wait_until
from watchdog_train.client import layout
from watchdog_train.store.slots import read_note, read_slots

API = """
import os, sys
import watchdog_train as w
w.beat(step=4, total_steps=9)
with w.phase("eval"):
    w.expect(60)
w.mark("half")
assert w.attempt() == 1 and w.resume_path() == "/a/b" and w.should_stop() is False
w.phase("train")
os.chdir("/")
os.environ.clear()
w.beat()
sys.stdout.write(w.__file__ + "\\n")
input_is_over = sys.stdin.read()
"""


@pytest.mark.parametrize("version", ["3.8", "3.10", "3.12", "3.13"])
def test_the_api_works_on_every_python(training: Training, version: str) -> None:
    """A bare script of any supported Python is heard, from the supervisor's copy, by file path."""
    # The line is not flushed: the stub makes a redirected stdout line-buffered, as a terminal is.
    how = {"env": {layout.ENV_RESUME_FROM: "/a/b"}, "python": (interpreter(version),)}
    with training.waiting(API, str(PACKAGE / "__init__.py"), **how) as process:
        reading = training.reading()
        assert reading.pid == process.pid
        assert (reading.role, reading.rank, reading.attempt) == ("rank", 0, 1)
        assert (reading.step, reading.total_steps, reading.milestone) == (4, 9, 1)
        assert reading.phase == "train"
        assert reading.progress[0] == 3
        assert reading.can_stop
        assert reading.fault_handler_signal == signal.SIGURG
        assert reading.expect_until_ns > reading.last_beat_ns
        assert reading.start == int(
            Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        )
    assert list(training.slot_dir.glob("*.slot")) == []


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_older_pythons_are_left_alone(training: Training, version: str) -> None:
    """Below 3.8, and in a Python 2 of the tree, nothing is installed and nothing is said."""
    script = "import sys; print([type(one).__name__ for one in sys.meta_path[:1]])"
    done = training.run(script, python=interpreter(version))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Finder" not in done.stdout.replace("BuiltinImporter", "")


def test_client_parses_as_python_3_8() -> None:
    """No module that is loaded into a training uses newer syntax."""
    for path in [PACKAGE / "__init__.py", *(PACKAGE / "client").rglob("*.py")]:
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 8))


def test_every_word_is_a_single_store() -> None:
    """Nothing in the client writes several words at once: struct.pack_into was seen torn."""
    for path in (PACKAGE / "client").rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert "pack_into" not in {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                slot_words = isinstance(node.value, ast.Name) and node.value.id == "words"
                assert not (slot_words and isinstance(node.slice, ast.Slice)), path


def own_sitecustomize(training: Training, text: str) -> Path:
    own = training.root / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(text)
    return own


@pytest.mark.parametrize("version", ["2.7", "3.8", "3.13"])
def test_the_users_own_sitecustomize_runs(training: Training, version: str) -> None:
    """The next sitecustomize on the path is executed and is the module that others see."""
    own = own_sitecustomize(training, "import sys\nsys.own = __file__\nVALUE = 7\n")
    done = training.run(
        "import sys, sitecustomize; assert sys.own; print(sitecustomize.VALUE)",
        python=interpreter(version),
        env={"PYTHONPATH": f"{INJECT}{os.pathsep}{own}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_errors_of_the_users_sitecustomize_look_as_ever(training: Training) -> None:
    """What the user's own sitecustomize raises is reported exactly as without us."""
    own = own_sitecustomize(training, "raise ValueError('mine')\n")
    with_us = training.run("", env={"PYTHONPATH": f"{INJECT}{os.pathsep}{own}"})
    without = run_script(training.root, "", env=plain_environment() | {"PYTHONPATH": str(own)})
    assert "ValueError: mine" in without.stderr
    assert with_us.stderr == without.stderr
    assert with_us.returncode == without.returncode


def test_nothing_happens_outside_a_supervised_run(tmp_path: Path) -> None:
    """Without wtrain's variables the stub installs nothing and the API does nothing."""
    script = """
import sys
print([type(f).__name__ for f in sys.meta_path if type(f).__module__ == "sitecustomize"])
import watchdog_train as w
w.beat(); w.expect(1); w.mark("x"); w.phase("train")
with w.phase("eval"): pass
print(w.attempt(), w.resume_path(), w.should_stop(), w.__version__)
print("watchdog_train.client.imports" in sys.modules, sys.stdout.line_buffering)
"""
    done = run_script(tmp_path, script, env=plain_environment() | {"PYTHONPATH": str(INJECT)})
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[]", "0 None False 0.1.0", "False False"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py"]


IMPORTS_ALLOWED = {"sitecustomize", "mmap", "faulthandler", "atexit", "_signal", "fcntl"}


def test_start_and_first_beat_import_next_to_nothing(training: Training) -> None:
    """A start imports the stub alone, and a beat a handful of modules, all of them cheap."""
    script = "import watchdog_train\nwatchdog_train.beat()\n"
    with_us = imported(training.run(script, options=("-X", "importtime")).stderr)
    bare = imported(
        run_script(training.root, "", env=plain_environment(), options=("-X", "importtime")).stderr
    )
    extra = {name for name in with_us - bare if not name.startswith("watchdog_train")}
    assert extra <= IMPORTS_ALLOWED
    only_start = imported(training.run("", options=("-X", "importtime")).stderr)
    assert only_start - bare <= {"sitecustomize"}


def imported(importtime: str) -> set[str]:
    lines = (line.rpartition("|")[2].strip() for line in importtime.splitlines())
    return {line for line in lines if line and line != "imported package"}


OUTPUT = """
import sys
import watchdog_train, tqdm
for _ in tqdm.tqdm(range(2), disable=True):
    watchdog_train.beat()
print("out")
print("err", file=sys.stderr)
sys.exit(3)
"""


BROKEN = {
    "fine": {},
    "missing": {},
    "read-only": {layout.ENV_SLOT_DIR: "/proc/self"},
    "full": {layout.ENV_SLOT_DIR: "/dev/full"},
    "file": {},
    "garbage-control": {},
    "bad-settings": {
        layout.ENV_SETTINGS: "{[", layout.ENV_RESUME_HOOK: "[]", layout.ENV_ATTEMPT: "x",
    },
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_output_and_exit_code_are_the_same_with_us(training: Training, broken: str) -> None:
    """Whatever is wrong with our files, the script prints the same and ends the same."""
    if broken in ("missing", "file"):
        training.slot_dir.rmdir()
    if broken == "file":
        training.slot_dir.write_text("no directory")
    if broken == "garbage-control":
        (training.slot_dir / layout.CONTROL_FILE).write_bytes(os.urandom(5000))
    with_us = training.run(OUTPUT, env=BROKEN[broken])
    without = run_script(
        training.root, OUTPUT, env=plain_environment() | {"PYTHONPATH": str(PACKAGE.parent)}
    )
    for done in (with_us, without):
        assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)


def test_no_slot_on_a_tmpfs_without_room(training: Training) -> None:
    """Where less than 16 MB are free no slot is made, and the API goes on doing nothing."""
    script = """
import os, watchdog_train
real = os.statvfs
class Full:
    f_bavail, f_frsize = 100, 4096
os.statvfs = lambda path: Full
watchdog_train.beat()
print(os.listdir(os.environ["WTRAIN_SLOT_DIR"]))
"""
    done = training.run(script)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_no_more_than_1024_slots(training: Training) -> None:
    """A tree of very many processes does not fill the directory."""
    for number in range(layout.SLOT_MAX_FILES):
        (training.slot_dir / f"{number}.slot").touch()
    done = training.run(
        "import os, watchdog_train\nwatchdog_train.beat()\n"
        "print(len(os.listdir(os.environ['WTRAIN_SLOT_DIR'])))"
    )
    assert (done.stdout, done.stderr) == (f"{layout.SLOT_MAX_FILES}\n", "")


FORK = """
import os, sys, warnings
import watchdog_train as w
w.beat(); w.beat()
child = os.fork()
if child == 0:
    w.beat()
    sys.stdout.write("child\\n"); sys.stdout.flush()
    sys.stdin.readline()
    os._exit(0)
os.waitpid(child, 0)
w.beat()
"""


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_a_forked_child_never_writes_into_its_parents_slot(
    training: Training, version: str
) -> None:
    """The child gets a slot and a dump file of its own, and the fork warns of no thread."""
    python = sys.executable if version == "3.11" else interpreter(version)
    with training.waiting(FORK, "child", python=(python, "-W", "error")) as process:
        readings = {reading.pid: reading for reading in read_slots(training.slot_dir).readings}
        parent = readings.pop(process.pid)
        (child,) = readings.values()
        assert parent.progress[0] == 2
        assert child.progress[0] == 1
        assert (parent.role, child.role) == ("rank", "other")
        os.kill(child.pid, signal.SIGURG)
        dump = training.slot_dir / f"{child.pid}{layout.DUMP_SUFFIX}"
        wait_until(lambda: "script.py" in dump.read_text(), 5, "the child dumps into its file")
        assert (training.slot_dir / f"{process.pid}{layout.DUMP_SUFFIX}").read_text() == ""


WAITING = """
import sys, watchdog_train
watchdog_train.beat()
print("ready")
sys.stdin.readline()
"""


def test_the_pulse_answers_a_dump_request(training: Training) -> None:
    """Stacks of all threads come without a signal, and pulses are no progress."""
    with training.control() as page:
        page.request_dump()
        page.begin_attempt()
        with training.waiting(WAITING, "ready") as process:
            dump = training.slot_dir / f"{process.pid}{layout.DUMP_SUFFIX}"
            (words,) = training.slot_dir.glob("*" + layout.SLOT_SUFFIX)
            wait_until(lambda: words.read_bytes()[8 * layout.W_PULSE], 5, "a pulse")
            assert dump.read_text() == "", "a request to an earlier attempt was answered"
            before = training.reading().progress
            number = page.request_dump()
            wait_until(lambda: training.reading().dump_answered == number, 5, "an answer")
            assert "script.py" in dump.read_text()
            assert training.reading().progress == before


def test_a_users_handler_of_the_signal_is_kept(training: Training) -> None:
    """Where the script handles SIGURG itself, its handler stays and the slot says not ready."""
    script = """
import signal, sys
signal.signal(signal.SIGURG, lambda *a: print("mine"))
import os, watchdog_train
watchdog_train.beat()
os.kill(os.getpid(), signal.SIGURG)
print("not mine")
sys.stdin.readline()
"""
    with training.waiting(script, "mine"):
        assert training.reading().fault_handler_signal == 0


def test_roles_of_launchers_and_ranks(training: Training) -> None:
    """RANK makes a rank with its numbers; a launcher's command line makes a launcher."""
    script = "import watchdog_train as w, sys\nw.beat()\nprint(1)\nsys.stdin.readline()\n"
    ranks = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    with training.waiting(script, "1", env=ranks):
        reading = training.reading()
        assert (reading.role, reading.rank, reading.local_rank, reading.world_size) == (
            "rank", 3, 1, 4,
        )  # fmt: skip
    from watchdog_train.client.roles import is_launcher

    launchers = ("-u -m torch.distributed.run train.py", "-um torch.distributed.run")
    launchers += ("-Wignore::SyncWarning:c /venv/bin/torchrun", "/venv/bin/torchrun train.py")
    for words in (*launchers, "-X dev /venv/bin/accelerate launch"):
        assert is_launcher(["python", *words.split()]), words
    for words in ("train.py torchrun", "-c torchrun", ""):
        assert not is_launcher(["python", *words.split()]), words


def test_hooks_survive_hostile_imports(training: Training) -> None:
    """A version out of range, a hook that breaks, and re-imports leave a note and nothing else."""
    (training.root / "tqdm").mkdir()
    (training.root / "tqdm" / "__init__.py").write_text("__version__ = '99.0'\n")
    (training.root / "safetensors").mkdir()
    (training.root / "safetensors" / "__init__.py").write_text("__version__ = '0.5'\n")
    (training.root / "safetensors" / "torch.py").write_text("save_file = 1\n")
    (training.root / "datasets.py").write_text("raise RuntimeError('broken library')\n")
    script = """
import sys, pickle, json
import tqdm, safetensors.torch
del sys.modules["tqdm"]
import tqdm
try:
    import datasets
except RuntimeError as error:
    print(error)
assert "exec_module" not in vars(tqdm.__loader__), vars(tqdm.__loader__)
pickle.dumps(tqdm.__spec__.loader)
assert tqdm.__loader__.get_source("tqdm") and tqdm.__spec__.origin == tqdm.__file__
"""
    done = training.run(script, env={"PYTHONPATH": f"{INJECT}{os.pathsep}{training.root}"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "broken library\n", "")
    note = training.note()
    assert "99.0" in note["hooks"]["tqdm"]
    assert note["hooks"]["safetensors"].startswith("failed")
    assert "datasets" not in note["hooks"]


def test_notes_and_slots_can_be_read_back(training: Training) -> None:
    """What the client writes, the supervisor's reader understands."""
    script = "import json, sys, watchdog_train as w\nw.mark('warm')\nw.phase('nonsense')\n"
    with training.waiting(script + "print(1)\nsys.stdin.readline()\n", "1") as process:
        note = wait_until(lambda: read_note(training.slot_dir, process.pid), 5, "a note")
        (warm,) = note.milestones
        assert (warm.name, warm.begin, warm.mark) == ("warm", warm.end, True)
        assert note.changes == 1
        assert note.role == "rank"
