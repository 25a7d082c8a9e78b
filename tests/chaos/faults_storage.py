"""Disks that are full or read-only, files that are cut, memory that is swept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.chaos.case import Case, NotReachedError
from tests.support import of_type
from watchdog_train.core.events import LIFECYCLE

SMALL = "size=12m"
FULL_S = (1.0, 8.0)
"""How long a disk is full, when it gets room again at all."""
FILLING = "filling"
GAVE_UP = 76


def small_runs(case: Case) -> None:
    """The run directory on a small disk of its own."""
    _mount(case.cwd / "wtrain-runs")


def small_output(case: Case) -> None:
    """The same for the training's checkpoints."""
    _mount(case.cwd / "checkpoints")


def _mount(folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL, "none", str(folder)], check=True)


def fill_runs(case: Case) -> None:
    """Nothing of it may reach the training; what is full for good keeps the log in memory.

    A restart waits for room, and there may never be any.
    """
    case.expected.harmless = True
    case.expected.codes |= {75} if case.trouble != "none" else set()
    _fill(case, case.cwd / "wtrain-runs", always_ends=False)


def fill_output(case: Case) -> None:
    """The training's own saves fail: it ends by itself, until there is room again."""
    case.expected.codes |= {1, 76}
    _fill(case, case.cwd / "checkpoints", always_ends=True)


def _fill(case: Case, folder: Path, *, always_ends: bool) -> None:
    path = folder / FILLING
    with path.open("wb", buffering=0) as file:
        for block_bytes in (65536, 4096, 512, 1):
            with suppress(OSError):  # full
                while file.write(b"\0" * block_bytes) == block_bytes:
                    pass
    after_s = case.chance.uniform(*FULL_S)
    case.notes.append(f"{folder.name} is full")
    if always_ends or case.chance.random() < 0.7:
        case.later(after_s, lambda: _empty(case, path))
    else:
        case.expected.full_for_good = True


def _empty(case: Case, path: Path) -> None:
    case.notes.append("there is room again")
    path.unlink(missing_ok=True)


def freeze_runs(case: Case) -> None:
    """Remounted read-only, as after an error of the disk, and mended later."""
    case.expected.harmless = True
    folder = case.cwd / "wtrain-runs"
    if not _remount(folder, "ro"):
        raise NotReachedError("busy: the kernel refuses to remount")
    case.notes.append("read-only")
    case.later(case.chance.uniform(*FULL_S), lambda: _mend(case, folder))


def _mend(case: Case, folder: Path) -> None:
    case.notes.append("writable again")
    _remount(folder, "rw")


def _remount(folder: Path, how: str) -> bool:
    # Of the file system, not of this mount: so it holds for descriptors that are open, too.
    done = subprocess.run(
        ["mount", "-o", f"remount,{how}", str(folder)], capture_output=True, check=False
    )
    return done.returncode == 0


def cut_slot(case: Case) -> None:
    """Its owner dies of SIGBUS at its next beat; whoever only reads must not."""
    folder = _slot_dir(case)
    slots = sorted(path for path in folder.iterdir() if path.name.isdigit())
    if not slots:
        slots = sorted(
            path for path in folder.iterdir() if path.is_file() and path.stat().st_size == 4096
        )
    if not slots:
        raise NotReachedError("there is no slot yet")
    chosen = case.chance.choice(slots)
    case.notes.append(f"{chosen.name} cut")
    os.truncate(chosen, 0)


def sweep_memory(case: Case) -> None:
    """As at a logout: everything of this user in memory is unlinked."""
    case.expected.harmless = True
    folder = _slot_dir(case)
    case.notes.append(f"{folder} swept")
    for place in (folder.parent, Path("/dev/shm")):
        for path in place.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _slot_dir(case: Case) -> Path:
    started = of_type(case.events, "run_started")
    if not started or not started[0]["slot_dir"]:
        raise NotReachedError("there is no slot directory")
    return Path(started[0]["slot_dir"])


def tear_log(case: Case) -> None:
    """A supervisor that is killed in the middle of a write."""
    case.expected.harmless = True
    assert case.supervisor is not None
    path = _log(case)
    case.kill(case.one("supervisor"), signal.SIGKILL)
    case.supervisor.process.wait(10)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rpartition(b"\n")[2]
    if b'"type":"run_finished"' in last:
        raise NotReachedError("the log has its last word")
    if b'"type":"run_started"' in last:
        raise NotReachedError("the log has one line only")
    durable = any(f'"type":"{kind.__struct_config__.tag}"'.encode() in last for kind in LIFECYCLE)
    if durable or case.chance.random() < 0.5:
        # A half line after whole ones: the write that was under way.
        with path.open("ab") as file:
            file.write(b'{"v":1,"seq":99999,"t":17'[: case.chance.randrange(1, 25)])
    else:
        # The last line itself; it was not durable yet.
        os.truncate(path, len(data) - case.chance.randrange(1, len(last) + 1))
    case.notes.append("the log is torn")


def cut_log(case: Case) -> None:
    """Somebody empties a part of it while it is written: said, and no harm to the training."""
    case.expected.harmless = True
    case.expected.log_damaged = True
    path = _log(case)
    size = path.stat().st_size
    os.truncate(path, case.chance.randrange(size // 2, size))
    case.notes.append("the log is cut")


def _log(case: Case) -> Path:
    run_dir = case.run_dir
    if run_dir is None:
        raise NotReachedError("there is no log yet")
    return run_dir / "events.jsonl"


def half_checkpoint(case: Case) -> None:
    """Half of a newer checkpoint lies there when the training is killed."""
    newest = _newest(case)
    half = _at_step(newest, _step(newest) + 500)
    if newest.is_dir():
        shutil.copytree(newest, half)
        victims = [
            path for path in half.iterdir() if path.suffix in (".safetensors", ".pt", ".bin")
        ]
        victim = case.chance.choice(sorted(victims))
    else:
        shutil.copy(newest, half)
        victim = half
    os.truncate(victim, case.chance.randrange(0, victim.stat().st_size // 2))
    case.notes.append(f"half of {victim.name}")
    case.kill(case.one("rank", 3.0), signal.SIGKILL)


def cut_checkpoint(case: Case) -> None:
    """The newest checkpoint is cut after the training was killed: the one before it is taken."""
    case.kill(case.one("rank", 3.0), signal.SIGKILL)
    newest = _newest(case)
    victim = newest
    if newest.is_dir():
        victim = next(path for path in newest.iterdir() if path.suffix in (".safetensors", ".pt"))
    os.truncate(victim, victim.stat().st_size // 2)
    _spoil(case, _step(newest))
    case.notes.append(f"{victim} cut")


def _spoil(case: Case, *steps: int) -> None:
    """From now on no attempt need begin at these."""
    at = len([line for line in case.journal() if line[2] == "0"])
    case.expected.spoiled |= {(step, at) for step in steps}


def useless_checkpoints(case: Case) -> None:
    """The newest are whole, but do not load or lead to NaN: the next older ones are tried."""
    count = case.chance.choice((2, 3))
    _until_saved(case, count)
    case.kill(case.one("rank", 3.0), signal.SIGKILL)
    older, *known = _checkpoints(case)[-count:]
    # The last one of them may be half-written, or whole and not in the journal.
    useless = [path for path in older.parent.iterdir() if _step(path) > _step(older)]
    how = case.chance.choice(("crash", "nan"))
    note = {path.name: path.stat().st_mtime_ns for path in useless}
    (case.cwd / "useless.json").write_text(json.dumps({**note, "how": how}), encoding="utf-8")
    case.notes.append(f"{how} with {sorted(note)}")
    _spoil(case, *map(_step, useless))

    def tried() -> Iterable[str]:
        lines = case.journal()
        tries = Counter(int(line[4]) for line in lines if line[3] == "useless")
        newest = max(tries, default=0)
        # One that comes a step further than any before it does not count; a save may be late.
        wrong = {step for step in tries if tries[step] not in ((2, 3) if step == newest else (1,))}
        if wrong or not set(map(_step, known)) <= set(tries):
            yield f"attempts with useless checkpoints, by step: {dict(tries)}"
        last = [int(line[4]) for line in lines if line[3] == "begin"][-1]
        if last != _step(older):
            yield f"the last attempt began at step {last}, not at {_step(older)}"

    case.expected.also.append(tried)


def one_file(case: Case) -> None:
    """Every save overwrites the same file, and a second passes from the first step to a save."""
    case.env["CHAOS_ONE_FILE"] = "1"
    case.command[case.command.index("--step-s") + 1] = "0.3"


def ignore_checkpoint(case: Case) -> None:
    """The next attempt loads nothing and begins at step 1: stopped before it saves, and said."""
    case.expected.codes = {GAVE_UP}
    _until_saved(case, 2)
    case.kill(case.one("rank", 3.0), signal.SIGKILL)
    (case.cwd / "ignores-checkpoints").touch()
    path = case.cwd / "checkpoints" / "last.pt"
    before = path.read_bytes()
    _spoil(case, *range(case.shape.steps))

    def kept() -> Iterable[str]:
        if path.read_bytes() != before:
            yield f"{path.name} was overwritten by an attempt that had not loaded it"
        if not any(event.get("contradicted") for event in of_type(case.events, "resume_verified")):
            yield "nothing says that the resume was contradicted"
        begins = [line for line in case.journal() if line[3] == "begin"]
        if len(begins) != 2:
            yield f"{len(begins)} attempts, expected 2"

    case.expected.also.append(kept)


def _until_saved(case: Case, count: int) -> None:
    """So many saves, and three steps more: an attempt that fails sooner brings no newer step."""
    while True:
        lines = case.journal()
        saved = [int(line[4]) for line in lines if line[3] == "saved"]
        if len(saved) >= count and int(lines[-1][4]) >= saved[-1] + 3:
            return
        if case.ended():
            raise NotReachedError(f"there are no {count} saves")
        case.wait(0.01)


def _newest(case: Case) -> Path:
    if not (found := _checkpoints(case)):
        raise NotReachedError("there is no checkpoint yet")
    return found[-1]


def _checkpoints(case: Case) -> list[Path]:
    saved = {int(line[4]) for line in case.journal() if line[3] == "saved"}
    folder = case.cwd / "checkpoints"
    found = [path for path in folder.glob("*") if _step(path) in saved] if folder.is_dir() else []
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    digits = path.name.partition(".")[0].rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _at_step(path: Path, step: int) -> Path:
    head, _, rest = path.name.partition(".")
    name, _, digits = head.rpartition("-")
    dot = "." if rest else ""
    return path.with_name(f"{name}-{step:0{len(digits)}d}{dot}{rest}")
