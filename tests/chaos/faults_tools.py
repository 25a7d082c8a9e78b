"""Tools that fail or hang, a port that is taken, a clock that is set."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from tests.chaos.case import Case, NotReachedError
from tests.support import TESTS, bin_path, of_type

DAY_S = 86_400.0
SEAMS = TESTS / "chaos" / "seams"
CLOCK = "CHAOS_CLOCK"


def nothing(case: Case) -> None:
    """The fault is there from the start."""
    case.expected.harmless = True


def slow_pyspy(case: Case) -> None:
    _replace_pyspy(case, "exec sleep 1000")


def failing_pyspy(case: Case) -> None:
    """As after a change of its format, or a crash of it."""
    _replace_pyspy(
        case, case.chance.choice(("exit 1", "kill -11 $$", "echo '[{'", "yes | head -c 50000000"))
    )


def _replace_pyspy(case: Case, body: str) -> None:
    """Over the installed one, in this case's own mounts."""
    fake = case.cwd / "fake-py-spy"
    fake.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    fake.chmod(0o755)
    case.notes.append(f"py-spy: {body}")
    subprocess.run(["mount", "--bind", str(fake), str(bin_path("py-spy"))], check=True)


def fixed_port(case: Case) -> None:
    """A launcher that meets at a port of the user's choice."""
    port = 20000 + case.chance.randrange(10000)
    case.notes.append(f"port {port}")
    at = case.command.index("--standalone")
    case.command[at : at + 1] = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    case.env["CHAOS_PORT"] = str(port)


def take_port(case: Case) -> None:
    """Somebody takes it when the first attempt is gone; and lets go of it after a while."""
    port = int(case.env["CHAOS_PORT"])
    case.kill(case.one("rank", 3.0), signal.SIGKILL)
    while not of_type(case.events, "tree_gone"):
        if case.ended():
            raise NotReachedError("the run ended at once")
        case.wait(0.01)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", port))
    taken.listen()
    case.later(case.chance.uniform(2.0, 10.0), taken.close)
    # The port is the user's choice: when it stays taken every attempt fails before its first step.
    case.expected.codes |= {1, 76}


def clock(case: Case) -> None:
    """A sitecustomize of the user's, through which a wall clock can be set.

    It reaches wtrain and the training; the keeper ignores the environment, and asks no wall clock
    but for what it writes down.
    """
    offset = case.cwd / "clock-offset"
    offset.write_text("0", "ascii")
    case.env[CLOCK] = str(offset)
    case.env["PYTHONPATH"] = str(SEAMS)


def clock_ahead(case: Case) -> None:
    _set_clock(case, DAY_S)


def clock_back(case: Case) -> None:
    _set_clock(case, -DAY_S)


def _set_clock(case: Case, offset_s: float) -> None:
    case.expected.harmless = True
    path = Path(case.env[CLOCK])
    fresh = path.with_suffix(".new")
    fresh.write_text(str(offset_s), "ascii")
    fresh.replace(path)
