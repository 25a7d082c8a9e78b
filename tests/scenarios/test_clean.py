"""`wtrain clean`: what a bad night leaves is found with its reason; nothing else is touched."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_tree_is_gone
from tests.support import (
    is_alive,
    of_type,
    program_command,
    run_directories,
    run_fast,
    run_wtrain,
    start_fast,
    start_wtrain,
    wait_until,
)
from watchdog_train.core.fold.evolve import replay
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import runs_in
from watchdog_train.supervisor.setup import take_lock
from watchdog_train.supervisor.start import remove_succeeded
from watchdog_train.system import current

LEAVES_A_HELPER = """
import subprocess, sys, time
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1e6)"])
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
print("finished", helper.pid, flush=True)
"""


def rows(cwd: Path, *options: str) -> list[dict[str, object]]:
    """What is left over of the runs of this test: the command looks at the whole machine."""
    found = run_wtrain("clean", "--json", *options, cwd=cwd).json()["leftovers"]
    ours = [path.name for path in run_directories(cwd)]
    return [row for row in found if any(name in f"{row['what']} {row['why']}" for name in ours)]


def make_old(directory: Path) -> None:
    os.utime(directory, (1, 1))


@pytest.mark.timeout(120)
def test_a_helper_that_a_run_left_is_ended_and_a_bystander_is_not(tmp_path: Path) -> None:
    """A recorded member of an ended run goes; a process that only inherited its token stays."""
    script = tmp_path / "train.py"
    script.write_text(LEAVES_A_HELPER)
    run = run_fast(tmp_path, (sys.executable, str(script)), "--observe").check(0)
    helper = int(run.stdout.split()[-1])
    assert is_alive(helper), run.describe()
    environ = Path(f"/proc/{helper}/environ").read_bytes().split(b"\0")
    token = dict(word.decode().split("=", 1) for word in environ if word.startswith(b"WTRAIN_"))
    bystander = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(1e6)"], env={**os.environ, **token}
    )
    try:
        found = {row["what"]: row for row in rows(tmp_path)}
        assert found[f"pid {helper}"]["removable"] is True, found
        assert found[f"pid {bystander.pid}"]["removable"] is False, found
        assert "left alone" in str(found[f"pid {bystander.pid}"]["why"])
        assert is_alive(helper), "a dry run ends nothing"
        removed = {row["what"]: row["removed"] for row in rows(tmp_path, "--yes")}
        assert removed[f"pid {helper}"] is True
        assert not is_alive(helper)
        assert is_alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait(10)
    assert not [row for row in rows(tmp_path) if row["kind"] == "process"]


@pytest.mark.timeout(120)
def test_an_unwatched_training_is_listed_and_its_memory_kept_until_it_is_dead(
    tmp_path: Path,
) -> None:
    """A live training is never cleaned up; when all of it is dead its slots and lock text are."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "2000")
    running = start_fast(tmp_path, command)
    running.wait_for("first_step", 60)
    started = of_type(running.events, "run_started")[0]
    launched = of_type(running.events, "attempt_launched")[0]
    slots = Path(started["slot_dir"])
    make_old(slots)
    assert not rows(tmp_path), "a run that is watched is nobody's leftover"
    os.kill(running.pid, signal.SIGKILL)
    running.result(10)
    make_old(slots)
    (row,) = [row for row in rows(tmp_path, "--yes") if row["kind"] != "lock"]
    assert (row["kind"], row["removable"]) == ("training", False)
    assert f"wtrain adopt {started['run_id']}" in str(row["why"])
    assert is_alive(launched["pid"])
    assert slots.is_dir()

    os.kill(launched["keeper_pid"], signal.SIGKILL)
    members = [launched["pid"], *map(int, children(launched["pid"]))]
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, members)), 10, "the training is dead")
    make_old(slots)
    for path in (tmp_path / ".home" / "runtime").rglob(f"*{started['run_id']}"):
        make_old(path)  # on a slow machine one of them would get old between two looks
    kinds = {row["kind"]: row for row in rows(tmp_path, "--yes")}
    assert kinds["slots"]["removed"] is True, kinds
    assert not slots.exists()
    assert not rows(tmp_path)


def children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [word for task in tasks for word in task.read_text().split()]


@pytest.mark.timeout(60)
def test_old_runs_go_only_when_asked_for(tmp_path: Path) -> None:
    """--keep-last and --older-than choose among ended runs; `latest` stays."""
    for _ in range(3):
        run_wtrain("run", "--", sys.executable, "-S", "-c", "pass", cwd=tmp_path).check(0)
    runs = sorted(
        path.name
        for path in (tmp_path / "wtrain-runs").iterdir()
        if path.is_dir() and not path.is_symlink()
    )
    assert len(runs) == 3
    assert not rows(tmp_path)
    assert not rows(tmp_path, "--older-than", "1d")
    found = rows(tmp_path, "--keep-last", "2")
    assert len(found) == 1, found
    assert all(int(str(row["bytes"])) > 0 for row in found)
    run_wtrain("clean", "--keep-last", "0", "--yes", cwd=tmp_path).check(0)
    left = [path for path in (tmp_path / "wtrain-runs").iterdir() if path.name != "latest"]
    latest = (tmp_path / "wtrain-runs/latest").resolve()
    assert [path for path in left if path.is_dir()] == [latest]


def test_events_of_a_deleted_run_are_found(tmp_path: Path) -> None:
    """A supervisor was killed after somebody had deleted its run: its spill is in memory still."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "memory")}
    user = os.getuid()
    spill = tmp_path / f"memory/wtrain-{user}-spill/sft-20261121-231005-beef"
    spill.mkdir(mode=0o700, parents=True)
    (spill / "events.spill.jsonl").write_bytes(b"{}\n")
    make_old(spill)
    found = run_wtrain("clean", "--json", cwd=tmp_path, env=env).json()["leftovers"]
    [row] = [row for row in found if row["what"] == str(spill)]
    assert row["removable"]


def test_the_socket_of_a_killed_leader_is_found(tmp_path: Path) -> None:
    """A leader that lives holds its folder."""
    links = tmp_path / ".home/runtime" / f"wtrain-{os.getuid()}-link"
    alive, dead = links / "a1", links / "d2"
    for folder in (alive, dead):
        folder.mkdir(parents=True, mode=0o700)
        (folder / "leader").touch()
        make_old(folder)
    held = os.open(alive, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        found = run_wtrain("clean", "--json", cwd=tmp_path).json()["leftovers"]
        assert [row["what"] for row in found if str(links) in row["what"]] == [str(dead)]
        run_wtrain("clean", "--yes", cwd=tmp_path).check(0)
        assert (alive.is_dir(), dead.exists()) == (True, False)
    finally:
        os.close(held)


def test_old_directories_of_agents_go_with_the_runs(tmp_path: Path) -> None:
    """What is worth keeping of them is in their leader's run."""
    run_wtrain("run", "--runs-dir", "wtrain-runs/.agents", "--", "true", cwd=tmp_path).check(0)
    run_wtrain("run", "--runs-dir", "wtrain-runs/.agents", "--", "true", cwd=tmp_path).check(0)
    place = tmp_path / "wtrain-runs/.agents"
    (older,) = set(place.glob("true-*")) - {(place / "latest").resolve()}
    found = run_wtrain("clean", "--json", "--keep-last", "1", cwd=tmp_path).json()["leftovers"]
    assert [row["what"] for row in found if row["kind"] == "run"] == [str(older)]


def test_an_agent_removes_what_it_has_left_of_runs_that_succeeded(tmp_path: Path) -> None:
    """Not what failed, and nothing of another task."""
    place = tmp_path / "wtrain-runs/.agents"
    for name, command in (("a-node1", "true"), ("a-node1", "false"), ("a-node2", "true")):
        run_wtrain("run", "--runs-dir", str(place), "--name", name, "--", command, cwd=tmp_path)
    locks = [take_lock(run, current()) for run in runs_in(place)]
    remove_succeeded(place, "a-node1")
    assert len(runs_in(place)) == 3, "their supervisors live"
    for lock in locks:
        lock.release()
    remove_succeeded(place, "a-node1")
    left = [run.name for run in runs_in(place)]
    assert left == ["a-node1", "a-node2"]
    (failed, _) = runs_in(place)
    assert replay(read_events(failed.events).events).outcome != "succeeded"


def test_a_bad_time_is_refused(tmp_path: Path) -> None:
    """What is not a time gets an answer with exit code 78."""
    refused = run_wtrain("clean", "--older-than", "soon", cwd=tmp_path).check(78)
    assert "--older-than" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_supervisor_killed_after_its_last_word_leaves_nothing_for_good(tmp_path: Path) -> None:
    """Its slots, its folders in memory and its entry among live runs are found, with reasons."""
    run = start_wtrain("run", "--", "sleep", "0.3", cwd=tmp_path)
    wait_until(lambda: b"run_finished" in _log(tmp_path), 30, "the last word", poll_s=0.001)
    run.process.send_signal(signal.SIGKILL)
    run.result()
    (directory,) = run_directories(tmp_path)
    places = [Path(base) for base in (run.env.get("XDG_RUNTIME_DIR", ""), "/dev/shm") if base]
    for place in places:
        for path in place.rglob(f"*{directory.name}*"):
            make_old(path)
    found = {row["kind"] for row in rows(tmp_path)}
    assert found >= {"entry", "slots"}, found
    run_wtrain("clean", "--yes", cwd=tmp_path).check(0)
    assert rows(tmp_path) == []


def _log(cwd: Path) -> bytes:
    return b"".join(path.read_bytes() for path in cwd.glob("wtrain-runs/*/events.jsonl"))


@pytest.mark.slow
@pytest.mark.needs_subreaper
def test_a_helper_of_a_training_whose_keeper_died_at_once_is_ended(tmp_path: Path) -> None:
    """It left its family, its environment is empty, and nobody had looked before the keeper died.

    It holds the output open, too: who reads that in place of the keeper would wait for ever.
    """
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "helper = [sys.executable, '-S', '-c', 'import time; time.sleep(1e6)']\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execve(sys.executable, helper, {})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(2)\n"
        "print('done', flush=True)\n"
    )
    run = run_wtrain(
        "run", "--on-crash", "stop", "--", sys.executable, str(script), cwd=tmp_path, env={}
    )
    assert "done" in run.stdout, run.describe()
    assert_tree_is_gone(run)
    left = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_in(pid, tmp_path)
    ]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, run.describe()


def is_in(pid: int, folder: Path) -> bool:
    """Whether a process works in that folder."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == str(folder)
    except OSError:
        return False
