"""Runs a case of cases.yaml under wtrain and compares the screen with the truth.

Only texts are read: `wtrain show 0001` and what `wtrain run` wrote. As a program it runs the given
cases (all by default) in folders below ./held-out and prints what each screen lacks:

    python -m tests.held_out.runner 03 07

`--stall-timeout` makes each hang a stall after 20 s, however patient the supervisor is by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support import (
    MARKER,
    RunningWtrain,
    bin_path,
    marked_processes,
    run_wtrain,
    start_fast,
    wait_until,
)

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
LAUNCHERS = {
    "python": [sys.executable],
    "torchrun": [str(bin_path("torchrun")), "--standalone", "--nproc-per-node=2"],
    "accelerate": [
        *(str(bin_path("accelerate")), "launch", "--multi_gpu", "--num_processes=2"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
    ],
}
LIMITS = ("--stall-timeout", "20s")
HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def cases() -> list[dict[str, Any]]:
    return yaml.safe_load((HERE / "cases.yaml").read_text("utf-8"))


@dataclass
class Screens:
    """What a person saw, and the names by which the truth speaks of processes."""

    show: str
    live: str
    facts: dict[str, str]


@dataclass
class Result:
    """The patterns of each kind that the screen lacks, and what it should not have said."""

    missing: dict[str, list[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.wrong and not any(self.missing.values())


def _server() -> socket.socket:
    """Accepts connections by its backlog alone, and never answers."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(16)
    return server


def _prepare(case: dict[str, Any], cwd: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """What the runner plants before the start; the facts that it knows."""
    facts: dict[str, str] = {}
    for kind, value in case.get("outside", {}).items():
        if kind == "server":
            facts[value] = str(stack.enter_context(_server()).getsockname()[1])
        if kind not in {"hold_lock", "fifo", "bytes"}:
            continue
        path = cwd / value
        path.parent.mkdir(parents=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "bytes":
            path.write_bytes(b"abc\xff\xfe")
        else:
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLDER, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(holder)
            assert holder.stdout
            holder.stdout.readline()
            facts["holder"] = str(holder.pid)
    return facts


def _noted(cwd: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (cwd / "facts").glob("[!.]*")}


def _starts(cwd: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return len((cwd / "starts").read_text().splitlines())
    return 0


def _deliver(case: dict[str, Any], run: RunningWtrain) -> None:
    """Sends the signal of the case once the program says that it has reached the place."""
    outside = case.get("outside", {})
    if "signal" in outside:
        place = outside.get("when", outside["to"])
        wait_until(lambda: place in _noted(run.cwd), 90, f"the program notes {place}")
        os.kill(int(_noted(run.cwd)[outside["to"]]), signal.Signals[outside["signal"]])


def _stop(run: RunningWtrain) -> None:
    """Interrupts wtrain, a second time where it is slow, so that it removes what it made."""
    for _ in range(2):
        if run.process.poll() is None:
            run.send(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(10)


def _end_all() -> None:
    """Kills what is left of everything that this test has started, and waits until it is gone."""

    def none_left() -> bool:
        left = marked_processes(os.environ[MARKER])
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(none_left, 20, "every process of the case has ended")


def run_case(case: dict[str, Any], cwd: Path) -> Screens:
    """Runs the case until the next attempt begins or the run has ended; returns the screens."""
    cwd.mkdir(parents=True, exist_ok=True)
    launcher, program, *arguments = case["start"]
    with contextlib.ExitStack() as stack:
        stack.callback(_end_all)
        facts = _prepare(case, cwd, stack)
        arguments = [_fill(argument, facts, str) for argument in arguments]
        command = [*LAUNCHERS[launcher], str(PROGRAMS / program), *arguments]
        run = start_fast(cwd, command, *LIMITS, env={"PLANTED": case.get("planted", "")})
        stack.callback(_stop, run)
        _deliver(case, run)
        at_first: dict[str, str] = {}

        def is_over() -> bool:
            if _starts(cwd) < 2:
                at_first.update(_noted(cwd))
            return _starts(cwd) >= 2 or run.process.poll() is not None

        with contextlib.suppress(AssertionError):
            wait_until(is_over, 120, "the first attempt has been judged", poll_s=0.1)
        shown = run_wtrain("show", "0001", cwd=cwd, env={"COLUMNS": "100"})
        return Screens(shown.stdout, run.stdout + run.stderr, {**at_first, **facts})


def _whole(value: str) -> str:
    return rf"(?<!\d){re.escape(value)}(?!\d)"


def _fill(pattern: str, facts: dict[str, str], quote: Callable[[str], str] = _whole) -> str:
    """The pattern with the facts it names; one that is unknown matches nothing."""
    return re.sub(r"\{([a-z][a-z0-9-]*)\}", lambda m: quote(facts.get(m[1], "\0")), pattern)


def _find(pattern: str, screen: str) -> int:
    """Where the pattern begins, or -1; the screen may break a line anywhere."""
    spaced, dense = " ".join(screen.split()), "".join(screen.split())
    found = re.search(pattern, spaced, re.IGNORECASE)
    if found is None and re.search(pattern.replace(" ", ""), dense, re.IGNORECASE):
        return len(spaced)
    return found.start() if found else -1


def place_of(marker: str) -> str:
    """The file:line that carries this marker in the programs."""
    found = [
        f"{path.name}:{number}"
        for path in sorted(PROGRAMS.glob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.endswith(f"# HERE:{marker}")
    ]
    assert len(found) == 1, (marker, found)
    return found[0]


def _without_grounds(case: dict[str, Any], screens: Screens) -> list[str]:
    """Settings that were used or offered although nothing here calls for them."""
    catalogue = json.loads(
        subprocess.check_output([str(bin_path("wtrain")), "remedies", "--json"], text=True)
    )
    ids = {remedy["id"] for kind in ("remedies", "user_fixes") for remedy in catalogue[kind]}
    said = screens.show + screens.live
    # They change nothing, save lost work whatever the cause, or are a word of every text.
    free = {"plain-retry", "none-user-fix", "save-sooner", *case.get("remedies", [])}
    found = [name for name in sorted(ids - free) if _is_named(name, said)]
    return found + ["make permanent"] * ("make permanent" in said)


def _is_named(setting: str, text: str) -> bool:
    """Whether the id stands alone: not a part of a path, a call or another word."""
    return bool(re.search(rf"(?<![\w./-]){re.escape(setting)}(?![\w./(-])", text))


def compare(case: dict[str, Any], screens: Screens) -> Result:
    """What the screen lacks, and what it says although it is not so."""
    result = Result()
    wanted = {kind: [_fill(p, screens.facts) for p in case[kind]] for kind in ("who", "object")}
    wanted["what"] = case["what"]
    wanted["where"] = [re.escape(place_of(marker)) + r"(?!\d)" for marker in case["where"]]
    for kind, patterns in wanted.items():
        result.missing[kind] = [p for p in patterns if _find(p, screens.show) < 0]
    culprits = [found for p in wanted["who"] if (found := _find(p, screens.show)) >= 0]
    for victim in case["victims"]:
        found = _find(_fill(victim, screens.facts), screens.show)
        if found >= 0 and (not culprits or found < min(culprits)):
            result.wrong.append(f"victim first: {victim}")
    result.wrong += [f"no grounds: {name}" for name in _without_grounds(case, screens)]
    return result


def main() -> None:
    os.environ[MARKER] = uuid.uuid4().hex
    for case in cases():
        if len(sys.argv) > 1 and case["id"] not in sys.argv[1:]:
            continue
        cwd = Path("held-out") / case["id"]
        screens = run_case(case, cwd.resolve())
        (cwd / "screens.txt").write_text(f"{screens.show}\n{'-' * 100}\n{screens.live}")
        result = compare(case, screens)
        print(case["id"], "good" if result.is_good else "", flush=True)
        for kind, patterns in result.missing.items():
            print(f"    {kind:7}", f"lacks {patterns}" if patterns else "yes", flush=True)
        print("    wrong  ", result.wrong or "nothing", flush=True)


if __name__ == "__main__":
    main()
