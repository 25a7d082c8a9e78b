"""Launching an attempt: the training sees streams, environment and input as without us."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import is_alive, wait_until
from watchdog_train.client import layout
from watchdog_train.core.model import CheckpointRef, Plan, Why
from watchdog_train.core.policy import Policy
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor import terminal as terminal_module
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.environment import (
    INJECT_DIRECTORY,
    environment_again,
    keep_environment,
    training_environment,
)
from watchdog_train.supervisor.hands.exits import read_exit, read_keeper
from watchdog_train.supervisor.hands.launch import (
    LaunchedKeeper,
    drain_without_keeper,
    start_keeper,
    stream_files,
)
from watchdog_train.supervisor.hands.streams import TakenEnds
from watchdog_train.supervisor.terminal import Terminal, terminal_now
from watchdog_train.system import current

PYTHON = sys.executable
NO_TERMINAL = Terminal()
ON_TERMINAL = Terminal(stdout_is_terminal=True, stderr_is_terminal=True, rows=41, columns=123)


def plan_of(*argv: str, **changes: Any) -> Plan:
    return Plan(**{"attempt": 1, "why": Why("first-attempt"), "argv": argv, **changes})


def context_of(**changes: Any) -> Any:
    """As much of a supervisor as a launch needs."""
    fields = {
        "directory": RunDirectory(Path("/runs/run-1")),
        "policy": Policy(),
        "scope": "host/boot",
        "cwd": "/",
        "slot_dir": Path("/dev/shm/wtrain-0-run-1"),
        "ignore_hup": False,
        "foreground": False,
    }
    return SimpleNamespace(**fields | changes)


Launch = Callable[..., LaunchedKeeper]


@pytest.fixture
def table() -> ChildTable:
    return ChildTable(current())


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "0001"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def launch(tmp_path: Path, attempt: Path, table: ChildTable) -> Iterator[Launch]:
    """Launches a command under a keeper; ends it, and waits for the keeper, with the test."""
    made: list[LaunchedKeeper] = []

    def start(
        *argv: str, terminal: Terminal = NO_TERMINAL, rank_streams: int = 0, **changes: Any
    ) -> LaunchedKeeper:
        context = context_of(
            directory=RunDirectory(tmp_path),
            cwd=str(tmp_path),
            slot_dir=None,
            environment=dict(os.environ),
            terminal=terminal,
            children=table,
        )
        plan = plan_of(*argv, **changes)
        env = training_environment(context, plan, "t0")
        launched = start_keeper(context, plan, env, rank_streams=rank_streams)
        made.append(launched)
        return launched

    yield start
    record = read_keeper(attempt)
    if record is not None and record.pid is not None and is_alive(record.pid):
        os.killpg(record.pid, signal.SIGKILL)
    for launched in made:
        launched.ends.close_reads()
    wait_until(lambda: table.poll() is not None and not table.running(), 15, "keepers have ended")


def exited(attempt: Path) -> Any:
    return wait_until(lambda: read_exit(attempt), 15, "the exit status is written")


def output(attempt: Path, name: str = "output") -> str:
    exited(attempt)
    path = attempt / f"{name}.log"
    return path.read_bytes().decode() if path.exists() else ""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_descriptors_of_any_number(launch: Launch, attempt: Path) -> None:
    """select() knows only those below 1,024; whoever started us may have more than that open."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("no more descriptors are to be had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        launched = launch(PYTHON, "-c", "print('said')")
        assert min(launched.ends.reads()) > 1024
        assert output(attempt) == "said\n"
        assert launched.ends.are_waiting(), "their end counts, too"
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_records_tell_who_and_how(launch: Launch, attempt: Path) -> None:
    """keeper.json and exit.json come back as typed records with verified identities."""
    assert read_keeper(attempt) is None
    assert read_exit(attempt) is None
    launched = launch("sh", "-c", "exit 5")
    ended = exited(attempt)
    assert (ended.code, ended.signal, ended.how_known) == (5, None, "keeper-file")
    record = read_keeper(attempt)
    assert record.error is None
    assert record.keeper(current()) == launched.child.identity
    root = record.root(current())
    assert (root.pid, root.start) == (record.pid, record.start)
    assert stream_files(attempt) == {"output": attempt / "output.log"}


def test_command_that_cannot_start_is_a_status(launch: Launch, attempt: Path) -> None:
    """A command that is not there is "not-started", in the system's words."""
    launch("no-such-command-anywhere")
    ended = exited(attempt)
    assert (ended.code, ended.signal, ended.how_known) == (None, None, "not-started")
    assert "no-such-command-anywhere" in ended.error
    record = read_keeper(attempt)
    assert record.root(current()) is None


@pytest.mark.parametrize("garbage", ['{"keeper_pid": "x"}', '{"error": "x"}'])
def test_garbage_in_records_is_unknown(attempt: Path, garbage: str) -> None:
    """A record that cannot be read says nothing, instead of something wrong."""
    (attempt / "keeper.json").write_text(garbage)
    (attempt / "exit.json").write_text("[")
    (attempt / "launch.json").write_text('{"streams": 5}')
    assert read_keeper(attempt) is None
    assert read_exit(attempt) is None
    assert stream_files(attempt) == {}


TERMINAL_REPORT = (
    "import os, sys, json\n"
    "size = list(os.get_terminal_size(1)) if os.isatty(1) else None\n"
    "print(json.dumps([os.isatty(0), os.isatty(1), os.isatty(2), size]))"
)


def test_each_stream_is_like_the_users(launch: Launch, attempt: Path) -> None:
    """`wtrain run ... >file` on a terminal: stdout is no terminal, stderr is one."""
    mixed = Terminal(stderr_is_terminal=True, same_stream=False)
    program = TERMINAL_REPORT + "\nprint('bar\\r', end='', file=sys.stderr)"
    launch(PYTHON, "-c", program, terminal=mixed)
    assert output(attempt, "stdout") == "[false, false, true, null]\n"
    assert output(attempt, "stderr") == "bar\r"
    assert set(stream_files(attempt)) == {"stdout", "stderr"}


def test_window_change_reaches_the_training(launch: Launch, attempt: Path, tmp_path: Path) -> None:
    """A resized window is a resized terminal for the training."""
    os.mkfifo(tmp_path / "gate")
    program = "import os; open('gate').read(); print(tuple(os.get_terminal_size(1)))"
    launched = launch(PYTHON, "-c", program, terminal=ON_TERMINAL)
    launched.ends.resize(30, 77)
    (tmp_path / "gate").write_text("")
    assert output(attempt) == "(77, 30)\n"


def test_wake_announces_output_and_ends_quietly(launch: Launch, attempt: Path) -> None:
    """The wake pipe is readable on output, emptied by us, and gone after the keeper."""
    import select

    launched = launch("sh", "-c", "echo x")
    assert select.select([launched.wake_fd], [], [], 10)[0]
    exited(attempt)

    def over() -> bool:
        launched.clear_wake()
        return launched.wake_fd == -1

    wait_until(over, 15, "the keeper has ended")


@pytest.mark.parametrize(
    ("ending", "code", "number"), [("exit 9", 9, None), ("kill -TERM $$", None, 15)]
)
def test_keeper_tells_the_exit_itself(
    launch: Launch, attempt: Path, ending: str, code: int | None, number: int | None
) -> None:
    """The wake pipe carries the status, for when the folder takes no exit.json."""
    launched = launch("sh", "-c", f"for i in 1 2 3; do echo $i; done; {ending}")

    def told() -> Any:
        launched.clear_wake()
        return launched.exit

    status = wait_until(told, 15, "the keeper has told the exit")
    assert (status.code, status.signal, status.how_known) == (code, number, "keeper")
    wait_until(lambda: read_exit(attempt), 15, "exit.json follows")


def test_status_is_heard_in_pieces(launch: Launch) -> None:
    """A line that arrives in two reads is one line, and garbage is none."""
    heard, told = os.pipe()
    os.set_blocking(heard, False)
    launched = launch("true")
    os.close(launched.wake_fd)
    launched.ends.wake_read = heard
    os.write(told, b"\n\nexit x\n" + b"z" * 5000 + b"\nexit 3")
    launched.clear_wake()
    assert launched.exit is None
    os.write(told, b"1 -1\n\n")
    launched.clear_wake()
    assert (launched.exit.code, launched.exit.signal) == (31, None)
    os.close(told)


def go_on_without_keeper(
    launch: Launch, attempt: Path, table: ChildTable, program: str, *own: Path, gate: str = ""
) -> None:
    """Kill the keeper, open the gate of the training, and wait for its last line and its end."""
    os.mkfifo(attempt.parents[1] / "gate")
    launched = launch(PYTHON, "-c", program, rank_streams=2 if own else 0)
    record = wait_until(lambda: read_keeper(attempt), 10, "it runs")
    for file in (*own, attempt / "output.log"):  # what is read and not written dies with the keeper
        wait_until(lambda f=file: f.exists() and f.read_text() == "before\n", 10, "it is written")
    os.kill(launched.child.pid, signal.SIGKILL)
    wait_until(table.poll, 10, "the keeper is dead")
    drain_without_keeper(launched.ends, attempt, attempt, table, log_cap_bytes=1024 * 1024)
    (attempt.parents[1] / "gate").write_text(gate)
    log = attempt / "output.log"
    wait_until(lambda: log.read_text().endswith("end\n"), 20, "everything has arrived")
    wait_until(lambda: not is_alive(record.pid or 0), 10, "the root has ended")


def test_dead_keeper_does_not_block_the_training(
    launch: Launch, attempt: Path, table: ChildTable
) -> None:
    """With the keeper killed the training still writes, and its output still arrives."""
    program = (
        "import os\nprint('before', flush=True)\nopen('gate').read()\n"
        "for n in range(20000): print('after', n, flush=False)\n"
        "print('end', flush=True)"
    )
    go_on_without_keeper(launch, attempt, table, program)
    assert len((attempt / "output.log").read_text().splitlines()) == 20002


@pytest.mark.slow
def test_dead_keeper_does_not_block_a_rank(
    launch: Launch, attempt: Path, table: ChildTable
) -> None:
    """A rank with a stream of its own is heard on, also after its launcher has ended."""
    program = (
        "import json, os, subprocess\n"
        "place = json.loads(os.environ['WTRAIN_RANK_STREAMS'])['ranks'][1]['output']\n"
        "rank = 'echo before; read _ <gate; seq 30000; echo end'\n"
        "subprocess.Popen(['sh', '-c', rank], stdout=open(place, 'w'))\n"
        "os.close(1)\nos.close(2)\nopen('gate').read()\n"
    )
    log, own = attempt / "output.log", attempt / "ranks/1/output.log"
    go_on_without_keeper(launch, attempt, table, program, own, gate="\n\n")
    wait_until(lambda: own.read_text() == log.read_text(), 10, "in both files")
    assert len(own.read_text().splitlines()) == 30002


@pytest.mark.parametrize(
    "orders",
    [
        {},
        {"fds": None},
        {"fds": [1, 2]},
        {"fds": {"output": "0"}},
        {"fds": {"output": -1}},
        {"fds": {"output": 1 << 40}},
        {"fds": {"other": 0}},
        {"fds": {"stdout": 0, "stderr": 77}},
    ],
)
def test_orders_that_somebody_has_rewritten_give_no_streams(orders: dict[str, Any]) -> None:
    """All streams or none; what was taken is closed again."""
    had: list[int] = []

    def take(number: int) -> int | None:
        had.extend(() if number else (os.dup(0),))
        return None if number else had[-1]

    with pytest.raises(OSError, match="cannot be had"):
        TakenEnds(orders, take)
    for fd in had:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_is_wrong_about_ranks_leaves_the_streams_of_all() -> None:
    """A rank without its own shares them."""
    ranks = {"streams": [{"output": {"fds": [0, 1]}}, {"output": 3}, None, {"output": {"fds": []}}]}
    ends = TakenEnds({"fds": {"output": 0}, "ranks": ranks}, lambda _: os.dup(0))
    assert ends.files == {"output": "output.log"}
    assert len(list(ends.reads())) == 2
    ends.close_reads()


def test_shells_own_files_reach_the_training(launch: Launch, attempt: Path) -> None:
    """`--data <(zcat x)` is a descriptor that the shell opened: the training can read it, and its
    writer sees the end when the training is gone.
    """
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    try:
        launch("sh", "-c", f"cat /dev/fd/{read_end}")
    finally:
        os.close(read_end)
    os.write(write_end, b"data")
    os.close(write_end)
    assert output(attempt) == "data"


def environment_of(plan: Plan, base: dict[str, str]) -> dict[str, str]:
    return training_environment(context_of(environment=base), plan, "t0")


@pytest.mark.parametrize(
    ("base", "path"), [({}, ""), ({"PYTHONPATH": ""}, ""), ({"PYTHONPATH": "/a:/b"}, ":/a:/b")]
)
def test_one_entry_is_put_before_the_users_path(base: dict[str, str], path: str) -> None:
    """PYTHONPATH gets one entry and never a trailing colon, which would mean the directory."""
    assert environment_of(plan_of("x"), base)["PYTHONPATH"] == str(INJECT_DIRECTORY) + path


def test_environment_of_a_first_attempt() -> None:
    """The client finds its run; nothing of an outer run or an earlier attempt is left."""
    base = {
        "HOME": "/home/u",
        layout.ENV_RESUME_FROM: "/old",
        layout.ENV_RESUME_HOOK: "{}",
        layout.ENV_NO_PTRACER: "1",
    }
    env = environment_of(plan_of("x", env={"OMP_NUM_THREADS": "1"}), base)
    expected = {
        "HOME": "/home/u", "OMP_NUM_THREADS": "1", "SPT_NOENV": "1", layout.ENV_RUN_ID: "run-1",
        layout.ENV_TOKEN: "t0", layout.ENV_SCOPE: "host/boot", layout.ENV_ATTEMPT: "1",
        layout.ENV_RUN_DIR: "/runs/run-1", layout.ENV_SETTINGS: "[]",
        layout.ENV_ATTEMPT_DIR: "/runs/run-1/attempts/0001",
        layout.ENV_SLOT_DIR: "/dev/shm/wtrain-0-run-1", "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "/runs/run-1/attempts/0001/flight-recorder-rank",
        layout.ENV_NO_PTRACER: "1",  # the user's own choice
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert not {layout.ENV_RESUME_FROM, layout.ENV_RESUME_HOOK} & env.keys()


def test_the_users_own_recorder_settings_stay() -> None:
    """Also under the names of older torch: 2.13 warns when it meets both."""
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "5", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/x"}
    env = environment_of(plan_of("x"), own)
    assert not {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"} & env.keys()


@pytest.mark.parametrize("via", ["hook", "env"])
def test_environment_of_a_resumed_attempt(via: str) -> None:
    """The checkpoint is named, with the way that the plan resumes by."""
    checkpoint = CheckpointRef(
        path="/out/checkpoint-8", format="hf", step=8, how_checked="quick", ordinal=2
    )
    plan = plan_of(
        "x", attempt=2, checkpoint=checkpoint, resume_via=via, in_process=({"id": "w0"},)
    )
    env = environment_of(plan, {})
    assert env[layout.ENV_ATTEMPT] == "2"
    assert env[layout.ENV_RESUME_FROM] == "/out/checkpoint-8"
    assert json.loads(env[layout.ENV_SETTINGS]) == [{"id": "w0"}]
    assert json.loads(env[layout.ENV_RESUME_HOOK]) == {
        "via": via, "format": "hf", "path": "/out/checkpoint-8", "step": 8, "output_dir": "/out",
        "ordinal": 2, "nth": None, "recorded": False, "counters": {}, "hold": True,
        "signature": None, "saved_at": None, "saved_as": "/out/checkpoint-8", "sole": False,
        "unkept": False,
    }  # fmt: skip


def test_detached_run_has_no_terminal() -> None:
    """One stream, no terminal, no input."""
    assert terminal_now(foreground=False) == NO_TERMINAL


def test_no_pseudo_terminal_left_means_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pseudo-terminal to be had the training runs with a pipe."""

    def refuse() -> tuple[int, int]:
        raise OSError("out of pty devices")

    monkeypatch.setattr(os, "openpty", refuse)
    read_end, write_end = terminal_module.open_stream(ON_TERMINAL)
    assert not os.isatty(write_end)
    os.close(read_end)
    os.close(write_end)


def test_the_environment_of_a_run_is_kept_for_a_restart(tmp_path: Path) -> None:
    """What it had, without secrets and without what belongs to one login; a job brings its own."""
    directory = RunDirectory(tmp_path)
    had = {
        "LR": "0.1", "DEVICE": "1", "HF_TOKEN": "hush", "PROXY": "http://me:hush@host", "TERM": "a",
        "GONE": "x", "ODD": "\udcff", "SSH_TTY": "/dev/pts/1", "N\udcff": "1",
    }  # fmt: skip
    shell = {"DEVICE": "2", "HF_TOKEN": "new", "TERM": "b", "EXTRA": "y", "HERE": "z"}
    assert environment_again(directory, shell).variables == shell  # nothing was kept
    keep_environment(directory, had)
    assert "hush" not in directory.environment.read_text()

    again = environment_again(directory, shell, ("GONE", "HERE", "NEW=1=2", "ODD=3"))
    assert again.variables == {
        "LR": "0.1", "DEVICE": "1", "HF_TOKEN": "new", "TERM": "b", "HERE": "z", "NEW": "1=2",
        "ODD": "3",
    }  # fmt: skip
    assert (again.missing, again.different) == (("PROXY",), ("DEVICE",))
    assert "DEVICE" not in environment_again(directory, {}, ("DEVICE",)).variables
    keep_environment(directory, again.variables)
    assert environment_again(directory, shell).missing == ("PROXY",), "said at each restart"

    job = {**shell, "SLURM_JOB_ID": "7"}
    assert environment_again(directory, job).variables == job
    mine, task = {**job, "RANK": "0"}, {**job, "RANK": "1", "HF_TOKEN": "its"}
    keep_environment(directory, mine)
    assert environment_again(directory, shell).variables == shell, "the job is over"
    assert environment_again(directory, task).variables == task, "its script has begun anew"
    again = environment_again(directory, task, same_job=True)
    assert again.variables == {**mine, "HF_TOKEN": "its", "TERM": "b"}, "adopted by another task"
