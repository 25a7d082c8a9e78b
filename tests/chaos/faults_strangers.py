"""What stands around a run: a slow reader, files that are none, daemons, another user's files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.chaos import checks
from tests.chaos.bystanders import state_of
from tests.chaos.case import Case, NotReachedError
from tests.support import is_alive, of_type

OTHER_USER = 65534
REFUSED, BUG = 78, 70
READERS = ("status", "ps", "ps -a", "show", "logs", "checkpoints", "report", "clean")
"""Commands that look at a run and must not care what they find."""
ANSWER_S = 60.0
STAND_IN_S = (1.0, 3.0)


# -- Output ----------------------------------------------------------------------------------------


def slow_reader(case: Case) -> None:
    """`wtrain run ... | reader`: every line arrives in order, and waiting for it is no stall."""
    reading, case.stdout = os.pipe()
    lines, pause_s, rate = case.chance.choice(((500, 0.0, 400_000), (14_000, 12.0, 1e9)))
    case.env["CHAOS_LOUD"] = str(lines)
    case.notes.append(f"{lines} lines a step, {pause_s:g} s of nothing, then {rate:g} bytes/s")
    got = bytearray()

    def read() -> None:
        time.sleep(pause_s)
        while data := os.read(reading, 65_536):
            got.extend(data)
            time.sleep(len(data) / rate)
        os.close(reading)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def whole() -> Iterable[str]:
        reader.join(ANSWER_S)
        arrived = [line for line in got.splitlines() if line.startswith(b"loud ")]
        printed = (case.cwd / "loud.txt").read_bytes().splitlines()
        if arrived != printed:
            yield f"{len(arrived)} of {len(printed)} lines arrived, or in another order"
        stalls = len(of_type(case.events, "stall_declared"))
        if stalls != (case.trouble == "hang"):
            yield f"{stalls} stalls were declared"

    case.expected.also.append(whole)


# -- Files that are none ---------------------------------------------------------------------------


def stand_in(case: Case) -> None:
    """A FIFO, a socket or a folder in place of files of the run: nobody may wait for it."""
    case.expected.harmless = True
    case.hurry(150.0)
    run_dir, places = case.run_dir, _places(case)
    assert run_dir is not None
    request = f"{time.time_ns()}-{case.chance.choice(('stop', 'dump', 'save'))}.json"
    chosen = case.chance.sample(places, min(len(places), case.chance.randint(1, 5)))
    for path in (run_dir / "requests" / request, *chosen):
        _replace(case, path)
    for words in case.chance.sample(READERS, 3):
        run = [] if words.startswith(("ps", "clean")) else [str(run_dir)]
        asked = case.ask(*words.split(), *run, within_s=ANSWER_S)
        if checks.has_a_bug(asked.stderr) or asked.returncode == BUG:
            case.complain(asked)


def _places(case: Case) -> list[Path]:
    """Files of the run, its side files, and those that it may read or write soon."""
    run_dir, started = case.run_dir, of_type(case.events, "run_started")
    if run_dir is None or not started:
        raise NotReachedError("there is no run yet")
    found = [path for path in run_dir.rglob("*") if path.is_file() and not path.is_symlink()]
    slots = Path(started[0]["slot_dir"] or "/nonexistent")
    if slots.is_dir():
        found += [path for path in slots.iterdir() if path.suffix == ".json"]
    attempts = of_type(case.events, "attempt_launching")
    for number in (len(attempts), len(attempts) + 1) if attempts else ():
        folder = run_dir / "attempts" / f"{number:04d}"
        names = ("exit.json", "survey.json", "saves.1.jsonl", "launch.json", "keeper.json")
        found += [folder / name for name in names if folder.is_dir()]
    return sorted(set(found))


def _replace(case: Case, path: Path) -> None:
    """What was there comes back after a while, if the run has not written or removed it."""
    how = case.chance.choice(("FIFO", "FIFO", "socket", "folder"))
    aside = path.with_name(f".aside-{path.name}")
    path.parent.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        path.rename(aside)
    try:
        if how == "FIFO":
            os.mkfifo(path)
        elif how == "folder":
            path.mkdir()
        else:
            os.mknod(path, stat.S_IFSOCK | 0o600)
    except FileExistsError:  # the run was faster
        pass
    case.notes.append(f"a {how} in place of {path.name}")

    def back() -> None:
        with suppress(OSError):
            if path.exists() and not path.is_file():
                path.rmdir() if path.is_dir() else path.unlink()
                aside.rename(path)
        aside.unlink(missing_ok=True)

    case.later(case.chance.uniform(*STAND_IN_S), back)


# -- Processes beside the training -----------------------------------------------------------------


def daemons(case: Case) -> None:
    """An agent with a socket, a `nohup`, and an orphan that is a fork of the training."""
    case.env["CHAOS_BESIDE"] = "agent nohup orphan"

    def lived() -> Iterable[str]:
        gone = of_type(case.events, "tree_gone")
        told = {one["process"]["pid"] for event in gone for one in event.get("left", ())}
        for line in case.journal():
            kind, pid = line[3], int(line[4])
            if kind == "orphan" and is_alive(pid):
                yield f"a fork of attempt {line[0]} lives on as pid {pid}"
            if kind in ("agent", "nohup"):
                state = state_of(pid)
                if state in (None, "T", "t", "Z"):
                    yield f"{kind} of attempt {line[0]} (pid {pid}) is ended or stopped: {state}"
                elif pid not in told:
                    yield f"{kind} of attempt {line[0]} (pid {pid}) is listed nowhere"
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    case.expected.also.append(lived)


# -- Another user's files --------------------------------------------------------------------------


def another_user(case: Case) -> None:
    """Runs lie in a colleague's folder; as that, files can be given away only by root."""
    folder = case.cwd / "wtrain-runs"
    folder.mkdir()
    try:
        _give(folder)
    except OSError as error:
        case.impossible = f"no file can be given to another user: {error.strerror}"


def _give(*paths: Path) -> None:
    for path in paths:
        os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)


def foreign(case: Case) -> None:
    """Settings, a run, a request, a folder of another user's: nothing of them is obeyed or run."""
    proof = case.cwd / "obeyed"
    events = ("run_started", "adopted", "stop_requested", "run_finished")
    settings = {"notify": {"commands": [f"{event}=touch {proof}" for event in events]}}
    what = case.chance.choice((_settings, _run, _request, _folder))
    case.notes.append(f"foreign: {what.__name__}")
    what(case, json.dumps(settings))
    case.expected.also.append(lambda: ["a foreign file was obeyed"] if proof.exists() else [])


def _settings(case: Case, settings: str) -> None:
    case.expected.harmless = True
    folder = case.cwd / "shared"
    folder.mkdir()
    (folder / "wtrain.yaml").write_text(settings, "utf-8")
    _give(folder, folder / "wtrain.yaml")
    asked = case.ask("run", "--", "true", cwd=folder)
    if asked.returncode not in (0, REFUSED):
        case.complain(asked)


def _run(case: Case, settings: str) -> None:
    """A copy of this very run: whoever believes it stops or adopts our training."""
    case.expected.harmless = True
    assert case.run_dir is not None
    copy = case.cwd / "shared" / case.run_dir.name
    shutil.copytree(case.run_dir, copy)
    (copy / "config.yaml").write_text(settings, "utf-8")
    _give(copy, *copy.rglob("*"))
    for words in (("stop", "--now"), ("adopt",)):
        asked = case.ask(*words, str(copy))
        if asked.returncode != REFUSED:
            case.complain(asked)


def _request(case: Case, settings: str) -> None:
    case.expected.harmless = True
    assert case.run_dir is not None
    request = {"kind": "stop_now", "by": "somebody else", "at": time.time(), "args": {}}
    path = case.run_dir / "requests" / f"{time.time_ns()}-stop_now.json"
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name("fresh")
    fresh.write_text(json.dumps(request), "utf-8")
    _give(fresh)
    fresh.rename(path)


def _folder(case: Case, settings: str) -> None:
    """Whoever owns the folder of runs has put a folder of links in place of the run's own."""
    run_dir = case.run_dir
    assert run_dir is not None
    moved, victim = run_dir.with_name("moved"), case.cwd / "victim"
    victim.write_text("precious", "ascii")
    run_dir.rename(moved)
    attempts = sorted(moved.glob("attempts/*"))
    shutil.copytree(moved, run_dir, ignore=shutil.ignore_patterns("attempts"))
    (run_dir / "config.yaml").write_text(settings, "utf-8")
    for number in (len(attempts), len(attempts) + 1):
        (folder := run_dir / "attempts" / f"{number:04d}").mkdir(parents=True)
        for name in ("launch.json", "plan.json", "keeper.json", "exit.json", "survey.json"):
            (folder / name).symlink_to(victim)
    _give(run_dir, *run_dir.rglob("*"))

    def back() -> None:
        if moved.is_dir():
            shutil.rmtree(run_dir, ignore_errors=True)
            moved.rename(run_dir)

    case.later(1e9, back)  # at the end of the run
    case.expected.also.append(
        lambda: [] if victim.read_text() == "precious" else ["a link was followed and written to"]
    )
    case.kill(case.one("rank", ANSWER_S), signal.SIGKILL)
