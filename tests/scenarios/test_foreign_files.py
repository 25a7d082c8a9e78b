"""Another user's files: nothing of theirs is obeyed, and no file of a run blocks who reads it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest

from tests.support import (
    CompletedRun,
    end_process,
    read_log,
    run_wtrain,
    script,
    start_program,
    start_wtrain,
    types,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="needs FIFOs, which Windows lacks"
)
needs_second_user = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root can give a file to a second user",
)
NOBODY = 65534
HOOK = "notify:\n  commands: ['run_finished=touch {0}', 'run_started=touch {0}']\n"


def give(path: Path) -> None:
    """To the second user, with all that is in it."""
    for each in (path, *path.rglob("*")):
        os.chown(each, NOBODY, NOBODY, follow_symlinks=False)


def refused(run: CompletedRun, *words: str) -> None:
    run.check(78)
    for word in (*words, "hint: "):
        assert word in run.stderr, run.describe()
    assert "Traceback" not in run.stderr, run.describe()


@needs_second_user
def test_settings_that_were_only_found_must_be_ours(tmp_path: Path) -> None:
    """What others own or may write is refused before anything of it is used; a name is consent."""
    owned, started = tmp_path / "owned", tmp_path / "started"
    found = tmp_path / "wtrain.yaml"
    found.write_text(HOOK.format(owned))
    give(found)
    command = ("--", "touch", str(started))
    refused(run_wtrain("run", *command, cwd=tmp_path), "nobody", "--config wtrain.yaml")
    os.chown(found, 0, 0)
    found.chmod(0o646)
    refused(run_wtrain("run", *command, cwd=tmp_path), "others may write", "--config wtrain.yaml")
    found.unlink()
    os.mkfifo(found)
    run_wtrain("run", *command, cwd=tmp_path).check(78)
    assert not owned.exists()
    assert not started.exists()
    assert not (tmp_path / "wtrain-runs").exists()

    named = tmp_path / "theirs.yaml"
    named.write_text(HOOK.format(owned))
    give(named)
    run = run_wtrain("run", "--config", "theirs.yaml", *command, cwd=tmp_path).check(0)
    assert "theirs.yaml (it belongs to nobody)" in run.stderr, run.describe()
    assert owned.exists()


SWAPPED = """\
import os, pathlib, sys, time
if not os.path.exists("again"):
    pathlib.Path("again").touch()
    print("first", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    sys.exit(3)
print("second", flush=True)
"""


@needs_second_user
def test_a_place_of_another_user_who_puts_his_own_run_there(tmp_path: Path) -> None:
    """The run goes on in the directory that was made; links and requests beside it do nothing."""
    runs, private = tmp_path / "wtrain-runs", tmp_path / "private"
    private.mkdir(mode=0o700)
    victim = private / "victim.txt"
    victim.write_text("mine")
    runs.mkdir()
    (runs / ".gitignore").symlink_to(private / "planted")
    give(runs)
    running = start_wtrain("run", "--", *script(tmp_path, SWAPPED), cwd=tmp_path)
    running.wait_for("attempt_launched", 20)
    (real,) = runs.glob("train-*")
    assert stat.S_IMODE(real.stat().st_mode) == 0o700
    # What the owner of the place can do: move the run away, and put something else there.
    moved = runs / "moved"
    real.rename(moved)
    for folder in ("attempts/0001", "attempts/0002", "requests", "stalls"):
        (real / folder).mkdir(parents=True)
    for name in ("launch.json", "plan.json", "output.log", "stdout.log", "exit.json"):
        (real / "attempts/0002" / name).symlink_to(victim)
    for name in ("config.yaml", "report.html", "trace.jsonl", "lock", "lock.json"):
        (real / name).symlink_to(victim)
    request = {"kind": "stop_now", "by": "nobody", "at": 0.0}
    (real / "requests/1-stop_now.json").write_text(json.dumps(request))
    (moved / "requests/2-stop_now.json").write_text(json.dumps(request))
    give(real)
    give(moved / "requests/2-stop_now.json")
    (tmp_path / "go").touch()
    run = running.result(60).check(0)
    assert run.stdout == "first\nsecond\n", run.describe()
    assert "Traceback" not in run.stderr, run.describe()
    assert victim.read_text() == "mine"
    assert os.listdir(private) == ["victim.txt"]
    events = read_log(moved)
    assert types(events).count("attempt_launched") == 2
    assert events[-1]["outcome"] == "succeeded"
    assert "stop_requested" not in types(events)
    assert (moved / "attempts/0002/exit.json").is_file()
    assert (moved / "report.html").is_file()
    (evidence,) = [event for event in events if event["type"] == "evidence_collected"]
    assert evidence["problem"] is None
    assert (moved / "stalls/0001/SUMMARY.md").is_file()
    assert "first" in (moved / "stalls/0001/log-tail.txt").read_text("utf-8")
    assert sum(len(files) for _, _, files in os.walk(real)) == 11  # as they were put there
    program = start_program("sleeping_steps.py")
    try:
        run_wtrain("dump", "--pid", str(program.pid), cwd=tmp_path).check(0)
    finally:
        end_process(program)
    assert os.listdir(private) == ["victim.txt"]


@needs_second_user
def test_a_run_of_another_user_is_read_and_nothing_of_it_is_done(tmp_path: Path) -> None:
    """Commands that act refuse with 78; those that read say whose it is; clean leaves it there."""
    owned = tmp_path / "owned"
    (tmp_path / "hook.yaml").write_text(HOOK.format(owned))
    for _ in range(2):
        run = run_wtrain(
            "run", "--config", "hook.yaml", "--name", "sft", "--", "true", cwd=tmp_path
        ).check(0)
    owned.unlink()
    directory = run.run_dir
    log = directory / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    (end,) = [i for i, line in enumerate(lines) if b'"type":"run_finished"' in line]
    log.write_bytes(b"".join(lines[:end]))
    for each in directory.parent.glob("sft-*"):
        give(each)
    for command in ("stop", "adopt", "save", "restart", "dump"):
        for reference in (str(directory), directory.name):
            told = run_wtrain(command, reference, cwd=tmp_path)
            refused(told, "run-foreign", "nobody", "sudo -u nobody", str(directory))
    for arguments in (("status",), ("logs",), ("ps", "-a"), ("status", "--json")):
        told = run_wtrain(*arguments, cwd=tmp_path)
        assert "Traceback" not in told.stderr, told.describe()
        assert told.returncode in (0, 3, 4), told.describe()
        if arguments[0] == "status":
            assert "it belongs to nobody" in told.stdout + told.stderr, told.describe()
    run_wtrain("clean", "--yes", "--keep-last", "0", cwd=tmp_path).check(0)
    assert len(list(directory.parent.glob("sft-*"))) == 2
    assert read_log(directory) == [json.loads(line) for line in lines[:end]]
    assert not owned.exists()
    # A run of ours comes before a newer one that somebody else has put there.
    ours = run_wtrain("run", "--name", "aaa", "--", "true", cwd=tmp_path).check(0).run_dir
    newer = directory.with_name("zzz-29991231-235959-ffff")
    shutil.copytree(directory, newer)
    give(newer)
    assert run_wtrain("status", "--json", cwd=tmp_path).json()["run_id"] == ours.name


@needs_second_user
def test_one_file_of_another_user_in_a_run_of_ours(tmp_path: Path) -> None:
    """Its settings are not used, even where the directory is ours."""
    owned = tmp_path / "owned"
    directory = run_wtrain("run", "--", "false", cwd=tmp_path).run_dir
    config = directory / "config.yaml"
    config.write_text(HOOK.format(owned))
    give(config)
    refused_ = run_wtrain("restart", directory.name, cwd=tmp_path).check(78)
    assert "nobody" in refused_.stderr, refused_.describe()
    assert not owned.exists()


def put(kind: str, path: Path) -> None:
    """Something that is no file in the place of one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            here = Path.cwd()
            os.chdir(path.parent)  # a path of a socket has 107 characters at most
            try:
                sock.bind(path.name)
            finally:
                os.chdir(here)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_no_file_of_a_run_blocks_who_reads_it(kind: str, tmp_path: Path) -> None:
    """In place of every file, the log included: each command ends, with words."""
    directory = run_wtrain("run", "--", "sh", "-c", "echo hello; exit 3", cwd=tmp_path).run_dir
    (directory / "requests/1-stop.json").touch()
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) > 20
    log = directory / "events.jsonl"
    for path in files:
        if path != log:
            put(kind, path)
    put(kind, directory.parent / "latest")
    commands = ("status", "logs", "ps -a", "show", "report --text", "probe", "clean", "stop")
    for command in commands:
        run = run_wtrain(*command.split(), cwd=tmp_path, timeout_s=20)
        assert "Traceback" not in run.stderr, run.describe()
    put(kind, log)
    for command in (*commands, "restart", "adopt"):
        run = run_wtrain(*command.split(), *_named(command, directory), cwd=tmp_path, timeout_s=20)
        assert "Traceback" not in run.stderr, run.describe()
        if command in ("status", "stop", "restart", "adopt"):
            run.check(78)
            assert "regular file" in run.stderr or "directory" in run.stderr, run.describe()


def _named(command: str, directory: Path) -> tuple[str, ...]:
    return () if command in ("ps -a", "clean") else (directory.name,)


PLANTS = """\
import os, pathlib, sys, time
run = pathlib.Path(sys.argv[1]).resolve()
if (run / "attempts/0002").exists():
    while list((run / "requests").glob("*stop_now*")):
        time.sleep(0.1)
    print("again", flush=True)
    sys.exit(0)
(run / "attempts/0002").mkdir()
for name in ("launch.json", "plan.json", "keeper.json", "exit.json", "exit.json.tmp"):
    os.mkfifo(run / "attempts/0002" / name)
for name in ("config.yaml", "slot_dir", "report.html", "lock.json", "trace.jsonl.1"):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
for number in range(3):
    os.mkfifo(run / f"requests/{number}-stop_now.json")
sys.exit(3)
"""


def test_fifos_that_the_training_puts_into_its_run_block_no_supervisor(tmp_path: Path) -> None:
    """The loop goes on, the next attempt starts, and a real request is still heard."""
    script = tmp_path / "plants.py"
    script.write_text(PLANTS)
    run = run_wtrain(
        "run", "--name", "x", "--", sys.executable, str(script), "wtrain-runs/latest", cwd=tmp_path,
        timeout_s=90,
    ).check(0)  # fmt: skip
    assert run.stdout == "again\n", run.describe()
    assert "Traceback" not in run.stderr, run.describe()
    assert os.listdir(run.run_dir / "requests") == []


def test_a_stop_is_heard_beside_a_fifo(tmp_path: Path) -> None:
    """A FIFO that is older than the request does not keep the loop from taking it."""
    running = start_wtrain("run", "--", "sleep", "600", cwd=tmp_path)
    running.wait_for("attempt_launched", 20)
    os.mkfifo(running.run_dir / "requests/1-stop.json")
    run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=30).check(0)
    assert running.result(20).returncode == 77


def shared_with(tmp_path: Path) -> Path:
    """A folder in which everyone may write, as /tmp without its sticky bit."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    return shared


OUTPUTS = {
    "--termination-log": ("term.log", "termination message cannot be written"),
    "--metrics-file": ("run.prom", ""),
    "report -o": ("page.html", "the report cannot be written"),
}


@needs_second_user
@pytest.mark.parametrize("planted", ["a link", "a link above it", "a file", "a hard link"])
@pytest.mark.parametrize("option", OUTPUTS)
def test_nothing_is_written_where_another_user_leads(
    tmp_path: Path, option: str, planted: str
) -> None:
    """Neither through his link nor over his file; the training runs, and the reason is told."""
    shared, home = shared_with(tmp_path), tmp_path / "home"
    name, told = OUTPUTS[option]
    home.mkdir(mode=0o700)
    victim = home / name
    victim.write_text("mine")
    target = shared / name
    if planted == "a link":
        target.symlink_to(victim)
    elif planted == "a link above it":
        (shared / "to").symlink_to(home)
        target = shared / "to" / name
    elif planted == "a file":
        target.write_text("mine")
        victim = target
    else:
        os.link(victim, target)
    for each in (shared / "to", target) if planted != "a hard link" else ():
        if each.parent == shared and (each.is_symlink() or each.exists()):
            os.chown(each, NOBODY, NOBODY, follow_symlinks=False)
    writes = option.startswith("--")
    more = (option, str(target)) if writes else ()
    run = run_wtrain("run", *more, "--on-crash", "stop", "--", "sh", "-c", "exit 3", cwd=tmp_path)
    run.check(3)
    said = run.stderr
    if not writes:
        report = run_wtrain("report", "-o", str(target), cwd=tmp_path)
        said = report.stderr
        assert (report.returncode == 78) == (planted != "a hard link"), report.describe()
    assert victim.read_text() == "mine"
    assert victim.stat().st_uid == (NOBODY if planted == "a file" else 0)
    assert os.listdir(home) == [name]
    if told and planted != "a hard link":
        assert told in said, run.describe()
        assert "nobody" in said, run.describe()


@needs_second_user
def test_what_the_caller_owns_is_written_over(tmp_path: Path) -> None:
    """His own file, and root's in a folder that everyone may write to."""
    shared = shared_with(tmp_path)
    for name in ("term.log", "run.prom", "page.html"):
        (shared / name).write_text("old")
    outputs = ("--termination-log", "shared/term.log", "--metrics-file", "shared/run.prom")
    run_wtrain("run", *outputs, "--", "true", cwd=tmp_path).check(0)
    run_wtrain("report", "-o", "shared/page.html", cwd=tmp_path).check(0)
    assert (shared / "term.log").read_text().startswith("wtrain: success")
    assert "wtrain_" in (shared / "run.prom").read_text()
    assert "<html" in (shared / "page.html").read_text()
