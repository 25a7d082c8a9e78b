"""What every test may use: waiting with a deadline, programs of the zoo, runs of wtrain.

Nothing here sleeps longer than a poll, and nothing here ends a process that a test did not start.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from watchdog_train.client import layout
from watchdog_train.core.model import Member, Why
from watchdog_train.core.policy import Detection, Limits, Timing, WaitLimits
from watchdog_train.report.why_text import why_text

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
PROGRAMS = TESTS / "programs"
EXAMPLES = REPOSITORY / "examples"
MARKER = "WTRAIN_TEST_MARKER"
"""Set per test, inherited by everything it starts: how the leak fixture finds what is left."""

T = TypeVar("T")
Event = dict[str, Any]


def wait_until(
    predicate: Callable[[], T | None], timeout_s: float, why: str, poll_s: float = 0.02
) -> T:
    """The first true value of `predicate`; fails the test with `why` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s:g} s for this, in vain: {why}")
        time.sleep(poll_s)


def remove_under_writers(folder: Path) -> None:
    """Removes a folder into which others still write, as a person does who calls ``rm -rf`` twice.

    A file that is made between the listing of a folder and its removal makes the latter fail with
    ENOTEMPTY: once in some hundred times on a busy machine.
    """

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(is_gone, 10, f"{folder} is gone")


def bin_path(name: str) -> Path:
    """A command installed beside the Python that runs the tests."""
    return Path(sys.executable).parent / name


def interpreter(version: str) -> str:
    """A Python of this version, or the test is skipped; a version manager's shim may be empty."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(versions.glob(f"{version}.*/bin/python"))]
    if not found and (path := shutil.which(f"python{version}")) is not None:
        found = [path]
    for python in found:
        done = subprocess.run([python, "-c", ""], capture_output=True, check=False, timeout=30)
        if done.returncode == 0:
            return python
    pytest.skip(f"no Python {version} here")


def is_alive(pid: int) -> bool:
    """True for a process that runs, sleeps or is stopped; a zombie is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def children_of(pid: int) -> list[int]:
    """Pids of the children of a process, now."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


def marked_processes(marker: str) -> dict[int, str]:
    """Live processes that inherited this marker: pid -> command line. Empty without /proc."""
    needle = f"{MARKER}={marker}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[pid] = b" ".join(words).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if is_alive(pid)}


def start_program(
    name: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    ready: bool = False,
    timeout_s: float = 60.0,
) -> subprocess.Popen[bytes]:
    """A program of the zoo in a session of its own; with `ready`, after it has written "ready".

    Its standard output is a pipe; the caller ends and waits for it.
    """
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / name), *args],
            env={**os.environ, **(env or {}), "READY_FD": str(write_end)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    finally:
        os.close(write_end)
    os.set_blocking(read_end, False)
    try:
        if ready:
            wait_until(lambda: _read_some(read_end), timeout_s, f"{name} says that it is ready")
    finally:
        os.close(read_end)
    return process


def _read_some(descriptor: int) -> bool:
    try:
        return b"ready" in os.read(descriptor, 64)
    except BlockingIOError:
        return False


def end_process(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> None:
    """Kills a program of `start_program` with its own process group, and reaps it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout_s)
    if process.stdout is not None:
        process.stdout.close()


def run_command(
    command: Sequence[str | Path], *, timeout_s: float = 60, code: int | None = 0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """A command to its end, with its output as text, and with `how` of subprocess.run().

    Any exit code but `code` fails the test with what the command has said; None takes each.
    """
    if "input" not in how:
        how["stdin"] = subprocess.DEVNULL
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, **how
    )
    said = f"{done.args}: exit {done.returncode}\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    assert code in (None, done.returncode), said
    return done


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size (as "1m") at a new folder; or the test is skipped."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "wtrain-test", str(folder)]
    if shutil.which("mount") is None or run_command(mount, code=None).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        run_command(["umount", "-l", str(folder)])


# -- Runs of the installed wtrain -----------------------------------------------------------------

FAST_NAME = "fast.yaml"
FAST = """\
detection:
  poll_s: 0.25
  silence_s: 3
patience:
  network_s: 6
stopping:
  grace_s: 5
  ask_s: 10
  hang_grace_s: 1
recovery:
  backoff_cap_s: 1
"""
_WAITS = WaitLimits(
    proven_s=3, proven_saving_s=3, proven_early_s=12, nobody_left_s=4, unknown_s=4,
    unknown_early_s=12, cost_most_s=6, poll_s=6, longest_sleep_s=20, again_s=6, again_later_s=6,
)  # fmt: skip
FAST_LIMITS = Limits(
    detection=Detection(window_s=0.5, rank_gone_s=2, rank_gone_launcher_s=20, busy_s=600),
    patience=_WAITS,
    timing=Timing(outlive_s=3, backoff_first_s=0.2, progress_s=1),
)
"""With the settings in FAST a hang is a matter of seconds; what counts as idle is as ever."""


def changed(limits: Limits, **sections: Mapping[str, float]) -> Limits:
    """These limits with some of their values changed."""
    told = {name: getattr(limits, name) for name in sections}
    return msgspec.structs.replace(
        limits,
        **{
            name: msgspec.structs.replace(told[name], **values) for name, values in sections.items()
        },
    )


def write_wtrain(folder: Path, limits: Limits) -> Path:
    """A `wtrain` with these limits, in a folder of its own: only a program can pass other ones."""
    path = folder / ".limits" / "wtrain"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"""\
#!{sys.executable}
import msgspec
from watchdog_train.cli.main import main
from watchdog_train.core.policy import Limits

main(msgspec.json.decode({msgspec.json.encode(limits)!r}, type=Limits))
"""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def wtrain_of(folder: Path) -> str:
    """The `wtrain` that `write_wtrain` wrote here, else the installed one."""
    path = folder / ".limits" / "wtrain"
    return str(path if path.exists() else bin_path("wtrain"))


def scenario_environment(cwd: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a run whose registry, state and caches stay inside `cwd`."""
    home = cwd / ".home"
    runtime = home / "runtime"
    runtime.mkdir(parents=True, exist_ok=True)
    runtime.chmod(0o700)
    base = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("WTRAIN_") or key == "WTRAIN_SYSTEM"
    }
    return {
        **base,
        MARKER: os.environ.get(MARKER, "none"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CONFIG_HOME": str(home / "config"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home / "hf"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "120",
        **(env or {}),
    }


def program_command(name: str, *args: str) -> list[str]:
    """The command that runs a program of the zoo, or an example by its path."""
    path = Path(name)
    return [sys.executable, str(path if path.is_absolute() else PROGRAMS / name), *args]


def script(cwd: Path, text: str) -> tuple[str, str]:
    """The command that runs this text as train.py in `cwd`."""
    (cwd / "train.py").write_text(text, encoding="utf-8")
    return sys.executable, "train.py"


def read_log(run_dir: Path) -> list[Event]:
    """Events of a run as plain dicts; a last line that is still being written is left out."""
    try:
        data = (run_dir / "events.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.split(b"\n")[:-1] if line]


def sentence(why: Any) -> str:
    """The words of a reason in an event, as a reader of it would have them."""
    return why_text(msgspec.convert(why, Why))


STARTED: list[subprocess.Popen[bytes]] = []
"""Commands of wtrain that the running test has started."""


def reap_started() -> None:
    """Ends and reaps what `start_wtrain` has started and a failing test has left behind."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.wait(10)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_slot(directory: Path, pid: int, **words: int) -> Path:
    """A slot with these words of the layout, as a client writes it."""
    values = [0] * layout.SLOT_WORDS
    values[layout.W_MAGIC] = layout.MAGIC
    values[layout.W_PID] = pid
    for name, value in words.items():
        values[getattr(layout, name)] = value
    path = directory / f"{pid}{layout.SLOT_SUFFIX}"
    data = struct.pack(f"={layout.SLOT_WORDS}Q", *values)
    path.write_bytes(data.ljust(layout.SLOT_BYTES, b"\0"))
    return path


def run_directories(cwd: Path, runs: str = "wtrain-runs") -> list[Path]:
    """Run directories under `cwd`, oldest first."""
    logs = (cwd / runs).glob("*/events.jsonl")
    found = {path.parent.resolve() for path in logs}
    return sorted(found, key=lambda path: (path / "events.jsonl").stat().st_ctime)


def types(events: Sequence[Event]) -> list[str]:
    """The types of events in order."""
    return [event["type"] for event in events]


def members_of(log: Sequence[Event]) -> list[Member]:
    """Everybody whom the log has ever recorded as a part of the tree."""
    told = (one for event in of_type(log, "progress") for one in event.get("members", ()))
    return [msgspec.convert(one, Member) for one in told]


def of_type(events: Sequence[Event], name: str) -> list[Event]:
    """Events of one type in order."""
    return [event for event in events if event["type"] == name]


def signals_of(events: Sequence[Event]) -> list[Event]:
    """What was sent to each process, in order."""
    return [one for event in of_type(events, "signalled") for one in event["sent"]]


def outline(events: Sequence[Event]) -> str:
    """A log in few lines, for the message of a failing assertion."""
    quiet = {"type", "seq", "t", "mono", "v", "plan", "members", "ranks", "processes"}
    lines = []
    for event in events:
        if event["type"] in {"progress", "signalled"}:
            continue
        rest = {key: value for key, value in event.items() if key not in quiet}
        lines.append(f"{event['seq']:4} {event['type']:20} {json.dumps(rest)[:240]}")
    return "\n".join(lines)


@dataclass
class CompletedRun:
    """A finished command of wtrain: what it said and the run it made."""

    args: list[str]
    returncode: int
    stdout: str
    stderr: str
    cwd: Path
    seconds: float

    @property
    def run_dir(self) -> Path:
        """The newest run directory under the working directory."""
        directories = run_directories(self.cwd)
        assert directories, f"no run directory was made:\n{self.describe()}"
        return directories[-1]

    @property
    def events(self) -> list[Event]:
        return read_log(self.run_dir)

    def of_type(self, name: str) -> list[Event]:
        return of_type(self.events, name)

    def only(self, name: str) -> Event:
        """The one event of this type; fails when there is none or more."""
        found = self.of_type(name)
        assert len(found) == 1, f"{len(found)} events {name}:\n{self.describe()}"
        return found[0]

    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value

    def describe(self) -> str:
        """Everything that a person needs to understand a failure."""
        directories = run_directories(self.cwd)
        log = outline(read_log(directories[-1])) if directories else "(no run directory)"
        return (
            f"{' '.join(self.args)}\nexit {self.returncode} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-5000:]}\n"
            f"--- events\n{log}"
        )

    def check(self, returncode: int = 0) -> CompletedRun:
        """Itself, after asserting the exit code."""
        assert self.returncode == returncode, self.describe()
        return self


@dataclass
class RunningWtrain:
    """A command of wtrain that runs; its output goes to files, so that it can never block on us."""

    args: list[str]
    process: subprocess.Popen[bytes]
    cwd: Path
    env: dict[str, str]
    stdout_path: Path
    stderr_path: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text("utf-8", "replace")

    @property
    def run_dir(self) -> Path | None:
        directories = run_directories(self.cwd)
        return directories[-1] if directories else None

    @property
    def events(self) -> list[Event]:
        run_dir = self.run_dir
        return read_log(run_dir) if run_dir else []

    def wait_for(
        self, name: str, timeout_s: float, where: Callable[[Event], bool] = lambda _: True
    ) -> Event:
        """The first event of this type; fails at once when wtrain has ended without it."""

        def look() -> Event | None:
            ended = self.process.poll() is not None
            found = [event for event in of_type(self.events, name) if where(event)]
            if not found and ended:
                raise AssertionError(f"ended without {name}:\n{self.result().describe()}")
            return found[0] if found else None

        try:
            return wait_until(look, timeout_s, f"event {name}", poll_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.snapshot().describe()}") from None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def snapshot(self) -> CompletedRun:
        """What is known now, as if it had ended; -999 while it runs."""
        code = self.process.poll()
        return CompletedRun(
            args=self.args,
            returncode=-999 if code is None else code,
            stdout=self.stdout,
            stderr=self.stderr,
            cwd=self.cwd,
            seconds=time.monotonic() - self.began,
        )

    def result(self, timeout_s: float = 30.0) -> CompletedRun:
        """The finished command; killed, with everything that it started, when it is late."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = self.snapshot().describe()
            self.process.kill()
            self.process.wait(10)
            raise AssertionError(f"still running after {timeout_s:g} s:\n{late}") from None
        return self.snapshot()


def start_wtrain(
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    wtrain: Sequence[str] = (),
) -> RunningWtrain:
    """Starts the installed `wtrain` (or another way to call it) in `cwd`, with its own state.

    With a config file that `write_fast_config` wrote it has the limits that belong to it.
    """
    cwd.mkdir(parents=True, exist_ok=True)
    full = scenario_environment(cwd, env)
    number = sum(1 for _ in cwd.glob(".command-*.out"))
    out, err = cwd / f".command-{number}.out", cwd / f".command-{number}.err"
    folder = next((Path(cwd, one).parent for one in args if Path(one).name == FAST_NAME), cwd)
    command = [*(wtrain or [wtrain_of(folder)]), *args]
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=full,
            stdin=stdin,
            stdout=out_file if stdout is None else stdout,
            stderr=err_file,
            start_new_session=True,
        )
    STARTED.append(process)
    return RunningWtrain(command, process, cwd, full, out, err)


def run_wtrain(
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    wtrain: Sequence[str] = (),
) -> CompletedRun:
    """Runs the installed `wtrain` in `cwd` to its end; see start_wtrain()."""
    return start_wtrain(*args, cwd=cwd, env=env, wtrain=wtrain).result(timeout_s)


def start_fast(cwd: Path, command: Sequence[str], *options: str, **how: Any) -> RunningWtrain:
    """`wtrain run` of a command with limits of seconds, and with `how` of start_wtrain().

    The config file of `cwd` is the one that `write_fast_config` has written there, or writes now.
    """
    config = cwd / FAST_NAME
    if not config.exists():
        write_fast_config(cwd)
    words = ("run", "--config", str(config), *options, "--", *command)
    return start_wtrain(*words, cwd=cwd, **how)


def run_fast(
    cwd: Path, command: Sequence[str], *options: str, timeout_s: float = 120, **how: Any
) -> CompletedRun:
    """Like `start_fast`, to its end."""
    return start_fast(cwd, command, *options, **how).result(timeout_s)


def run_program(cwd: Path, name: str, *args: str, timeout_s: float = 120) -> CompletedRun:
    """A program of the zoo under `wtrain run`, with limits of seconds."""
    return run_fast(cwd, program_command(name, *args), timeout_s=timeout_s)


def write_fast_config(cwd: Path, extra: str = "", limits: Limits | None = None) -> Path:
    """A config file and a `wtrain` with limits of seconds, for scenarios; returns the file."""
    write_wtrain(cwd, limits or FAST_LIMITS)
    path = cwd / FAST_NAME
    path.write_text(FAST + extra, encoding="utf-8")
    return path
