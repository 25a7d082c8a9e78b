"""The installed `wtrain` on run directories made from golden logs, and on one real run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core import test_guilty as guilty
from tests.core import test_machines as machines
from tests.support import (
    is_alive,
    program_command,
    run_wtrain,
    start_fast,
    start_wtrain,
    wait_until,
    write_slot,
)
from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.model import ProcessId
from watchdog_train.core.notices.vitals import Vitals
from watchdog_train.store.control import ControlPage
from watchdog_train.store.lock import Holder, RunLock
from watchdog_train.store.registry import register
from watchdog_train.store.requests import take
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.system import current

GOLDEN = Path(__file__).parents[1] / "golden"
RUN_ID = "sft-20261121-231005-a3f9"


def make_run(cwd: Path, golden: str, run_id: str = RUN_ID, **started: Any) -> Path:
    """A run directory with a golden log whose first event says what is given."""
    run = cwd / "wtrain-runs" / run_id
    (run / "attempts").mkdir(parents=True)
    first, *rest = (GOLDEN / f"{golden}.events.jsonl").read_bytes().splitlines(keepends=True)
    event = {**json.loads(first), "run_id": run_id, **started}
    (run / "events.jsonl").write_bytes(json.dumps(event).encode() + b"\n" + b"".join(rest))
    return run


def here() -> dict[str, Any]:
    """What makes a golden log one of this machine, since this boot."""
    return {"host": socket.gethostname(), "boot_id": current().boot_id()}


def write_output(run: Path, attempt: int, **streams: bytes) -> Path:
    folder = run / "attempts" / f"{attempt:04d}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in streams.items():
        end = "log.1" if name.endswith("_old") else "log"
        (folder / f"{name.removesuffix('_old')}.{end}").write_bytes(data)
    return folder


def kept_by_us(folder: Path) -> None:
    """The attempt goes on: its keeper is this process."""
    keeper = {"keeper_pid": os.getpid(), "keeper_start": current().identity(os.getpid()).start}
    (folder / "keeper.json").write_text(json.dumps(keeper))


def logs(cwd: Path, *options: str) -> str:
    return run_wtrain("logs", *options, cwd=cwd).check(0).stdout


# -- status, ps, report ------------------------------------------------------------------------


def test_status_of_an_ended_run(tmp_path: Path) -> None:
    """A finished run exits with 3 and is told from its log alone."""
    make_run(tmp_path, "stall_resumed")
    found = run_wtrain("status", cwd=tmp_path).check(3)
    assert found.stdout.startswith(f"● {RUN_ID} - python train.py --epochs 3\n")
    assert "succeeded" in found.stdout
    assert "\x1b" not in found.stdout
    data = run_wtrain("status", "sft", "--json", cwd=tmp_path).check(3).json()
    assert (data["state"], data["outcome"], data["exit_code"]) == ("finished", "succeeded", 0)
    assert data["remedies"] == ["num-workers-0"]


def test_colours_follow_the_usual_variables(tmp_path: Path) -> None:
    """FORCE_COLOR colours a pipe, NO_COLOR wins over it."""
    make_run(tmp_path, "healthy")
    forced = run_wtrain("status", cwd=tmp_path, env={"FORCE_COLOR": "1"}).check(3)
    assert "\x1b[" in forced.stdout
    both = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert "\x1b" not in run_wtrain("status", cwd=tmp_path, env=both).check(3).stdout


def test_status_of_a_dead_supervisor(tmp_path: Path) -> None:
    """A log that ends in the middle of a run of this machine: 4, and the way to go on."""
    make_run(tmp_path, "supervisor_died", pid=2**22 - 3, **here())
    found = run_wtrain("status", cwd=tmp_path).check(4)
    assert "no process of the training is left" in found.stdout
    assert f"wtrain adopt {RUN_ID}" in found.stdout
    data = run_wtrain("status", "--json", cwd=tmp_path).check(4).json()
    assert data["supervisor"]["alive"] is False
    assert data["ranks"][0]["beat_age_s"] is None


def test_status_and_ps_call_a_stopped_supervisor_over_a_dead_training_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds its lock, but its loop has not turned for minutes: as `wtrain probe` says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    slots = tmp_path / "slots"
    slots.mkdir(mode=0o700)
    run = make_run(tmp_path, "supervisor_died", slot_dir=str(slots), pid=os.getpid(), **here())
    (run / "slot_dir").write_text(str(slots))
    register(RunDirectory(run), ProcessId(os.getpid(), 0), slot_dir=slots)
    lock = RunLock(run / "lock", Holder(pid=os.getpid(), start=1, host=socket.gethostname()))
    lock.acquire()
    old = Vitals(os.getpid(), 0, current().monotonic() - 135, "running", 1)
    with ControlPage.create(slots / layout.CONTROL_FILE) as page:
        page.tell(old)
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        told = run_wtrain("status", cwd=tmp_path, env=state).check(4).stdout
        assert "State: blind" in told
        assert "no process of the training is left" in " ".join(told.split())
        assert f"kill -CONT {os.getpid()}" in " ".join(told.split())
        assert " blind " in run_wtrain("ps", cwd=tmp_path, env=state).check(0).stdout
        assert run_wtrain("probe", cwd=tmp_path, env=state).returncode == 1
        page.tell(old._replace(turned_s=current().monotonic()))
        assert "State: running" in run_wtrain("status", cwd=tmp_path, env=state).check(0).stdout
    lock.release()


def test_show_after_the_end_says_what_was_done(tmp_path: Path) -> None:
    """Not what the supervisor meant to do when the evidence was written."""
    run = make_run(tmp_path, "stall_resumed")
    folder = run / "stalls" / "0001"
    folder.mkdir(parents=True)
    verdict = {"id": "0001", "why": "stall", "at": 1.0, "done": ["then it is killed, if it may"]}
    (folder / "verdict.json").write_text(json.dumps(verdict))
    (folder / "evidence.json").write_text(json.dumps({"why": "stall", "processes": []}))
    told = " ".join(run_wtrain("show", "0001", cwd=tmp_path).check(0).stdout.split())
    assert "then attempt 2 resumed from step" in told, told
    assert "if it may" not in told


@pytest.mark.parametrize(
    ("started", "shown", "hidden"),
    [
        ({"max_restarts": 5, **here()}, "5 of 5 restarts left", "report only"),
        ({"report_only": True, **here()}, "report only", "restarts left"),
        (here(), "Attempt: 1\n", "restarts left"),
        ({}, "the run belongs to bench; ask there", "no process of the training is left"),
    ],
)
def test_status_says_no_more_than_is_known(
    tmp_path: Path, started: dict[str, Any], shown: str, hidden: str
) -> None:
    """Restarts are counted only where there may be some; without settings nothing is claimed, and
    a run of another host is neither called alive nor dead.
    """
    make_run(tmp_path, "supervisor_died", pid=2**22 - 3, **started)
    found = run_wtrain("status", cwd=tmp_path).check(4).stdout
    assert shown in found
    assert hidden not in found


def test_an_empty_log_is_shown(tmp_path: Path) -> None:
    """A supervisor killed before its first event leaves a run that says so."""
    run = tmp_path / "wtrain-runs" / RUN_ID
    run.mkdir(parents=True)
    (run / "events.jsonl").write_bytes(b'{"type":"run_sta')
    found = run_wtrain("status", cwd=tmp_path).check(4)
    assert "no first event" in found.stdout


def test_an_unknown_run_is_refused_in_words(tmp_path: Path) -> None:
    """Exit code 78, the reference id, and the runs to choose from."""
    make_run(tmp_path, "healthy")
    found = run_wtrain("status", "nonsense", cwd=tmp_path).check(78)
    assert "run-unknown" in found.stderr
    assert RUN_ID in found.stderr
    assert found.stdout == ""


def test_ps_lists_what_has_not_ended(tmp_path: Path) -> None:
    """Ended runs are listed with -a only; the JSON is a list of short status objects."""
    make_run(tmp_path, "healthy")
    assert "no live run" in run_wtrain("ps", cwd=tmp_path).check(0).stdout
    shown = run_wtrain("ps", "-a", cwd=tmp_path).check(0).stdout.splitlines()
    assert shown[0].split() == ["RUN", "STATE", "TIME", "ATTEMPT", "STEP", "COMMAND"]
    assert shown[1].startswith(f"{RUN_ID}  succeeded")
    data = run_wtrain("ps", "-a", "--json", cwd=tmp_path).check(0).json()
    assert data["schema_version"] == 1
    assert [run["run_id"] for run in data["runs"]] == [RUN_ID]
    assert "ranks" not in data["runs"][0]


def test_secrets_in_command_lines_are_not_shown(tmp_path: Path) -> None:
    """Status, ps and report take secret-looking values out of the command."""
    argv = ["python", "train.py", "--api-key", "sk-abcdefghijklmnop1234567890"]
    make_run(tmp_path, "healthy", argv=argv)
    for command in (["status"], ["status", "--json"], ["ps", "-a"], ["report"]):
        found = run_wtrain(*command, cwd=tmp_path)
        assert "abcdefghijklmnop" not in found.stdout, command
        assert "[removed]" in found.stdout, command


def test_report_as_text_page_and_data(tmp_path: Path) -> None:
    """`report` prints text; -o writes a whole page or JSON by the file's ending."""
    make_run(tmp_path, "stall_resumed")
    text = run_wtrain("report", cwd=tmp_path).check(0).stdout
    assert "success: exit code 0; step 3,000 of 3,000, 1 restart, 1 stall" in text
    # The checkpoint is one of the Trainer, so the line is one for its arguments.
    assert "TrainingArguments(..., dataloader_num_workers=0)" in text
    run_wtrain("report", "-o", "r.html", cwd=tmp_path).check(0)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http-equiv", "")
    data = run_wtrain("report", "--json", cwd=tmp_path).check(0).json()
    assert [attempt["attempt"] for attempt in data["attempts"]] == [1, 2]
    refused = run_wtrain("report", "-o", "no/such/dir/r.html", cwd=tmp_path).check(78)
    assert "report-unwritable" in refused.stderr


# -- logs --------------------------------------------------------------------------------------


def test_logs_across_attempts_and_rotated_files(tmp_path: Path) -> None:
    """All that was kept comes in order; -n counts from the end across files and attempts."""
    run = make_run(tmp_path, "stall_resumed")
    write_output(run, 1, output_old=b"a1\na2\n", output=b"a3\n")
    write_output(run, 2, output=b"b1\nb2\n")
    assert logs(tmp_path) == "a1\na2\na3\nb1\nb2\n"
    assert logs(tmp_path, "-n", "4") == "a2\na3\nb1\nb2\n"
    assert logs(tmp_path, "-n", "0") == ""
    assert logs(tmp_path, "--attempt", "1") == "a1\na2\na3\n"
    now = int(time.time())
    (run / "attempts/0002/output.log.times").write_text(f"{now - 3600} 0\n{now - 1800} 3\n")
    assert logs(tmp_path, "--attempt", "2", "--since", "1m") == "b2\n"
    unknown = run_wtrain("logs", "--attempt", "7", cwd=tmp_path).check(78)
    assert "attempts: 1, 2" in unknown.stderr


def test_logs_keep_streams_apart(tmp_path: Path) -> None:
    """Separately captured streams go to stdout and stderr again, bytes unchanged in a pipe."""
    run = make_run(tmp_path, "healthy")
    write_output(run, 1, stdout=b"out \x1b[2Jraw\n", stderr=b"err\n")
    found = run_wtrain("logs", RUN_ID, cwd=tmp_path).check(0)
    assert found.stdout == "out \x1b[2Jraw\n"
    assert found.stderr == "err\n"


def test_logs_of_one_rank(tmp_path: Path) -> None:
    """Lines that a launcher marked are picked; where there are none it says why."""
    run = make_run(tmp_path, "healthy")
    write_output(run, 1, output=b"[rank0]: x\n[rank1]: y\nplain\n[rank10]: z\n")
    assert logs(tmp_path, "--rank", "1") == "[rank1]: y\n"
    assert "logs-rank-unknown" in run_wtrain("logs", "--rank", "5", cwd=tmp_path).check(78).stderr


def write_rank(run: Path, attempt: int, rank: int, text: bytes, name: str = "output.log") -> None:
    """What a rank has written by itself, and orders that say that ranks could."""
    folder = run / f"attempts/{attempt:04d}"
    (folder / f"ranks/{rank}").mkdir(parents=True, exist_ok=True)
    (folder / f"ranks/{rank}/{name}").write_bytes(text)
    (folder / "launch.json").write_text('{"ranks": {"streams": [{}]}}')


def test_logs_of_a_rank_with_files_of_its_own(tmp_path: Path) -> None:
    """They are read where they are, whatever lines look like; marked lines elsewhere."""
    run = make_run(tmp_path, "stall_resumed")
    write_output(run, 1, output=b"[rank1]: marked\n")
    write_output(run, 2, output=b"of all\n[rank1]: not its own\nplain\nlast\n")
    write_rank(run, 2, 1, b"plain\n", "output.log.1")
    write_rank(run, 2, 1, b"last\n")
    write_rank(run, 2, 0, b"of all\n[rank1]: not its own\n")
    shown = partial(logs, tmp_path, "--rank", "1")
    assert shown() == "[rank1]: marked\nplain\nlast\n"
    assert shown("--attempt", "2") == "plain\nlast\n"
    assert shown("-n", "1") == "last\n"
    assert shown("--attempt", "1") == "[rank1]: marked\n"
    assert shown("-f") == "plain\nlast\n"


def test_logs_of_a_silent_rank(tmp_path: Path) -> None:
    """A rank that has written nothing is no mistake, one that there is not is."""
    launcher = {"family": "torchrun", "nodes": 1, "processes": 3}
    run = make_run(tmp_path, "stall_resumed", launcher=launcher)
    write_output(run, 1, output=b"zero\n")
    write_rank(run, 1, 0, b"zero\n")
    silent = run_wtrain("logs", "--rank", "2", cwd=tmp_path).check(0)
    assert silent.stdout == ""
    assert "rank 2 has written nothing" in silent.stderr
    refused = run_wtrain("logs", "--rank", "3", cwd=tmp_path).check(78).stderr
    assert "there is no rank 3" in refused
    assert "0, 1, 2" in refused


def test_logs_of_another_machine(tmp_path: Path) -> None:
    """By its name, its host name, or a rank of it; of all it is said that there are more."""
    run = make_run(tmp_path, "healthy")
    write_output(run, 1, output=b"of the leader\n")
    there = run / "attempts/0001/machines/node1"
    there.mkdir(parents=True)
    (there / "output.log").write_bytes(b"of the other\n")
    with (run / "events.jsonl").open("ab") as file:
        for seq, event in enumerate((*guilty.began()[1:], machines.census()), 16):
            file.write(e.encode(msgspec.structs.replace(event, seq=seq)) + b"\n")
    shown = partial(logs, tmp_path)
    every = run_wtrain("logs", cwd=tmp_path).check(0)
    assert (every.stdout, "also of node1" in every.stderr) == ("of the leader\n", True)
    assert shown("--machine", "node1") == shown("--machine", "n1") == "of the other\n"
    assert shown("--rank", "1") == shown("--rank", "1", "-n", "9") == "of the other\n"
    assert shown("--rank", "0") == "of the leader\n"
    refused = run_wtrain("logs", "--machine", "n7", cwd=tmp_path).check(78).stderr
    assert "node1 (n1)" in refused


def test_logs_follow_to_the_end_of_the_run(tmp_path: Path) -> None:
    """-f shows what is written, through a renamed file and a new attempt, and ends with the run."""
    run = make_run(tmp_path, "supervisor_died", **here())
    log = run / "events.jsonl"
    folder = write_output(run, 1, output=b"one\ntwo\n")
    kept_by_us(folder)
    watching = start_wtrain("logs", "-f", "-n", "1", cwd=tmp_path)
    wait_until(lambda: watching.stdout == "two\n", 20.0, "the last line is shown")
    with (folder / "output.log").open("ab") as file:
        file.write(b"three\n")
    (folder / "output.log").replace(folder / "output.log.1")
    (folder / "output.log").write_bytes(b"four\n")
    wait_until(lambda: watching.stdout == "two\nthree\nfour\n", 20.0, "the new file is shown")
    write_output(run, 2, output=b"five\n")
    wait_until(lambda: watching.stdout.endswith("five\n"), 20.0, "the new attempt is shown")
    finished = (GOLDEN / "healthy.events.jsonl").read_bytes().splitlines()[-1]
    with log.open("ab") as file:
        file.write(finished.replace(b'"seq":15', b'"seq":9') + b"\n")
    assert watching.result(20.0).check(0).stdout == "two\nthree\nfour\nfive\n"


def test_ctrl_c_ends_logs_quietly(tmp_path: Path) -> None:
    """Ctrl-C during -f leaves no traceback and no words."""
    run = make_run(tmp_path, "supervisor_died", **here())
    kept_by_us(write_output(run, 1, output=b"one\n"))
    watching = start_wtrain("logs", RUN_ID, "-f", cwd=tmp_path)
    wait_until(lambda: watching.stdout == "one\n", 20.0, "it follows")
    watching.send(signal.SIGINT)
    assert watching.result(20.0).check(130).stderr == ""


# -- stop and save -----------------------------------------------------------------------------


def test_stop_refuses_to_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several live runs and none named nothing is asked of any of them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".home" / "state"))
    runs = []
    for tail in ("0001", "0002"):
        run_id = f"sft-20261121-231005-{tail}"
        path = make_run(tmp_path, "supervisor_died", run_id=run_id, **here())
        runs.append(RunDirectory(path))
        assert register(runs[-1], ProcessId(os.getpid(), 1), boot_id=current().boot_id())
    found = run_wtrain("stop", cwd=tmp_path).check(78)
    assert "run-ambiguous" in found.stderr
    assert all(not take(run) for run in runs)


def test_stop_of_an_ended_run(tmp_path: Path) -> None:
    """An ended run needs no stop, and that is no error; a save of it is one."""
    make_run(tmp_path, "stopped")
    assert "has ended already" in run_wtrain("stop", RUN_ID, cwd=tmp_path).check(0).stderr
    assert "has ended already" in run_wtrain("save", RUN_ID, cwd=tmp_path).check(78).stderr


def test_save_with_the_supervisor_dead(tmp_path: Path) -> None:
    """Nobody could take the request, or tell what became of it."""
    slot_dir = tmp_path / "slots"
    slot_dir.mkdir(mode=0o700)
    ControlPage.create(slot_dir / layout.CONTROL_FILE).close()
    make_run(tmp_path, "supervisor_died", slot_dir=str(slot_dir), pid=2**22 - 3, **here())
    training = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        write_slot(
            slot_dir, training.pid, W_START=current().identity(training.pid).start, W_RANK=1,
            W_ROLE=layout.ROLE_RANK, W_ATTEMPT=1, W_PHASE=layout.PHASE_TRAIN,
            W_OPTIMIZER_STEPS=321, W_CAN_BE_ASKED=1,
        )  # fmt: skip
        status = run_wtrain("status", RUN_ID, cwd=tmp_path).check(4)
        assert "the training is alive" in " ".join(status.stdout.split())
        assert "step 321" in status.stdout
        found = run_wtrain("save", RUN_ID, cwd=tmp_path).check(78)
    finally:
        training.communicate(b"\n", 10)
    assert f"wtrain adopt {RUN_ID}" in found.stderr


def test_a_real_run_is_seen_and_stopped(tmp_path: Path) -> None:
    """Status, ps and save tell the truth about a live run; stop ends it and says what happened."""
    command = program_command("sleeping_steps.py", "--sleep-s", "0.5", "--steps", "500")
    run = start_fast(tmp_path, command)
    run.wait_for("first_step", 60.0)
    shown = run_wtrain("status", cwd=tmp_path).check(0)
    assert "running since" in shown.stdout
    assert " ago" in shown.stdout
    data = run_wtrain("status", "--json", cwd=tmp_path).check(0).json()
    assert data["supervisor"] == {"pid": run.pid, "alive": True, "blind_s": None}
    assert data["ranks"][0]["beat_age_s"] is not None
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / ".home" / "state")}
    listed = run_wtrain("ps", "--json", cwd=tmp_path / "elsewhere", env=elsewhere).check(0).json()
    assert [entry["run_id"] for entry in listed["runs"]] == [data["run_id"]]
    assert "save-cannot-be-asked" in run_wtrain("save", cwd=tmp_path).check(78).stderr
    stopped = run_wtrain("stop", cwd=tmp_path).check(0)
    assert "wtrain: stop requested (wtrain stop)" in stopped.stderr
    assert run.result(30.0).check(77)
    assert not is_alive(data["ranks"][0]["pid"])
    assert "stopped" in run_wtrain("status", cwd=tmp_path).check(3).stdout
