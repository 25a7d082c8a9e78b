"""Unusual ways to start, save, freeze and copy a training, that wtrain must see through."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.chaos import checks
from tests.chaos.case import Case, NotReachedError, command_line
from tests.support import children_of, is_alive, wait_until, wtrain_of

REFUSED = 78
FREEZER = (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
FROZEN_S = ((0.2, 1.2), (5.0, 9.0))
"""Shorter, or longer, than the fast settings give a stopped process."""
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-")
FIND_S = 5.0


# -- Saves that are renamed ------------------------------------------------------------------------


def renamed_saves(case: Case) -> None:
    """`step-N.part/` becomes `step-N/`, or a temporary file becomes the checkpoint."""
    case.env["CHAOS_RENAME"] = case.chance.choice(("folder", "file"))
    case.notes.append(f"saves a {case.env['CHAOS_RENAME']} that is renamed")


def kill_after_rename(case: Case) -> None:
    """The next attempt begins at that save, or at a newer one: see checks."""

    def saves() -> int:
        return sum(line[3] == "saved" for line in case.journal())

    before, until = saves(), time.monotonic() + FIND_S
    while saves() == before:
        if case.ended() or time.monotonic() > until:
            raise NotReachedError("nothing more was saved")
        case.wait(0.005)
    case.kill(case.one("rank", FIND_S), signal.SIGKILL)


# -- A frozen cgroup -------------------------------------------------------------------------------


def find_freezer(case: Case) -> None:
    """A cgroup of its own, whichever version has a freezer here."""
    for top in FREEZER:
        folder = top / f"chaos-{case.cwd.name}-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            if any((folder / name).exists() for name in ("freezer.state", "cgroup.freeze")):
                case.env["CHAOS_CGROUP"] = str(folder)
                return
            folder.rmdir()
    case.impossible = "no cgroup can be made here"


def freeze(case: Case) -> None:
    """The training alone, for a moment or past the limit of stopped processes; then thaw it."""
    folder = Path(case.env["CHAOS_CGROUP"])
    old = (folder / "freezer.state").exists()
    pid = case.one("rank", FIND_S)
    (folder / "cgroup.procs").write_text(str(pid), "ascii")

    def write(frozen: bool) -> None:
        if old:
            (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED", "ascii")
        else:
            (folder / "cgroup.freeze").write_text("1" if frozen else "0", "ascii")
        case.notes.append("frozen" if frozen else "thawed")

    def removed() -> Iterable[str]:
        write(frozen=False)
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), 20, "the cgroup is empty")
        folder.rmdir()
        return ()

    short = case.chance.random() < 0.5
    case.expected.harmless = short
    case.expected.codes |= set() if short else {75}  # what is frozen survives SIGKILL
    case.expected.also.append(removed)
    write(frozen=True)
    case.later(case.chance.uniform(*FROZEN_S[not short]), lambda: write(frozen=False))


# -- A training that leaves its starter ------------------------------------------------------------


def daemonizes(case: Case) -> None:
    """Fork, exit, setsid, fork: it is followed to its last step, by its steps."""
    case.env["CHAOS_DAEMONIZE"] = "1"
    case.expected.harmless = True


# -- Standard streams ------------------------------------------------------------------------------


def close_streams(case: Case) -> None:
    """As some daemons and `nohup ... <&-` start a program."""
    closed = case.chance.choice(CLOSED)
    case.notes.append(f"closed: {closed}")
    case.starter = ("sh", "-c", f'exec "$@" {closed}', "sh", wtrain_of(case.cwd))


# -- A copy of the run directory -------------------------------------------------------------------


def copy_run(case: Case) -> None:
    """Who reads the copy is answered; who would act on it is refused, and nothing comes of it."""
    case.expected.harmless = True
    run_dir = case.run_dir
    assert run_dir is not None
    copies = case.cwd / "backup"
    copies.mkdir()
    subprocess.run(["cp", "-a", str(run_dir), str(copies)], check=True)
    copy = copies / run_dir.name
    for words in (("status",), ("show",), ("report",)):
        asked = case.ask(*words, str(copy))
        if asked.returncode == 70 or checks.has_a_bug(asked.stderr):
            case.complain(asked)
    acting = [("stop", "--now"), ("adopt",), ("restart",), ("save",)]
    case.chance.shuffle(acting)
    for words in acting:
        by_name = case.chance.random() < 0.5
        asked = case.ask(*words, copy.name if by_name else str(copy), cwd=case.cwd,
                         env={"WTRAIN_RUNS_DIR": str(copies)} if by_name else None)  # fmt: skip
        if asked.returncode != REFUSED:
            case.complain(asked)


# -- Behind a shell --------------------------------------------------------------------------------


def behind_a_shell(case: Case) -> None:
    """A pipe into tee, or a script that goes on: the shell ends with 0 after a crash, too."""
    words = shlex.join(case.command)
    body = case.chance.choice((f"{words} | tee tee.log", f"{words}\necho done"))
    (case.cwd / "run.sh").write_text(f"{body}\n", "utf-8")
    inline = case.chance.random() < 0.5
    case.command = ["bash", "-c", body] if inline else ["bash", "run.sh"]
    case.notes.append(f"behind a shell: {body.removeprefix(words)!r}")


def crashed(case: Case) -> None:
    """It has raised by itself; the next attempt goes on to the end: see checks."""


def kill_behind_a_shell(case: Case) -> None:
    case.kill(_python_of(case.one("rank", FIND_S)), signal.SIGKILL)


def _python_of(root: int) -> int:
    left = [root]
    while left:
        pid = left.pop()
        if b"chaos_light.py" in command_line(pid).partition(b"bash")[0] and is_alive(pid):
            return pid
        left += children_of(pid)
    raise NotReachedError("the training is gone")
