"""Every program of tests/programs/waits: each wait names its object, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import PROGRAMS, wait_until
from watchdog_train.core.model import waits as w
from watchdog_train.evidence import process_look, pyspy
from watchdog_train.system import proc

if sys.platform != "linux":
    pytest.skip("by Linux's system calls", allow_module_level=True)

FOLDER = PROGRAMS / "waits"
_REFS = ("others", "holders", "children")


def programs() -> list[Any]:
    """Each with its file and the number of facts that it tells."""
    sys.path.insert(0, str(FOLDER))
    try:
        found = []
        for file in sorted(FOLDER.glob("*.py")):
            spec = importlib.util.spec_from_file_location(f"waits_{file.stem}", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            for name, (_, facts, needs, lines) in sys.modules["say"].PROGRAMS.items():
                has = needs is None or importlib.util.find_spec(needs)
                marks = [] if has else [pytest.mark.skip(reason=f"without {needs}")]
                found.append(pytest.param((file, name, facts, lines), id=name, marks=marks))
            sys.modules["say"].PROGRAMS.clear()
        return found
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """What the program says of its threads, once they are about to wait."""
    file, name, facts, lines = request.param
    process = subprocess.Popen(
        [sys.executable, str(file), name],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.set_blocking(process.stdout.fileno(), False)
    said = b""

    def said_by_all() -> list[bytes]:
        nonlocal said
        said += process.stdout.read() or b""
        if process.poll() is not None:
            words = process.stderr.read().decode()
            assert words.startswith("not here"), words
            pytest.skip(words)
        return said.splitlines() if said.count(b"\n") >= facts else []

    try:
        heard = wait_until(said_by_all, 60, f"{facts} facts")
        yield [{**json.loads(line), "file": str(file) * lines} for line in heard]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()


def _ref(pid: int) -> w.ProcessRef:
    found = proc.read_stat(pid)
    return w.ProcessRef(pid, found.start, found.name) if found else w.ProcessRef(pid, 0)


def _wanted(said: dict[str, Any]) -> w.Wait:
    """The value that a program describes."""
    said = {
        key: [msgspec.to_builtins(_ref(pid)) for pid in sorted(value)] if key in _REFS else value
        for key, value in said.items()
    }
    if "owner" in said:
        said["owner"] = msgspec.to_builtins(_ref(said["owner"]))
    if said.get("kind") == "fifo" and not said.get("unlinked"):
        said["complete"] = proc.link("self", "ns/pid") == "pid:[4026531836]"
    if said["wait"] == "poll":
        said["waits"] = [msgspec.to_builtins(_wanted(each)) for each in said["waits"]]
    return msgspec.convert(said, w.Wait)


def _seen(wait: w.Wait, wanted: w.Wait) -> w.Wait:
    """What was read, with its measures replaced by the wanted ones where they fit."""
    if type(wait) is not type(wanted):
        return wait
    new: dict[str, Any] = {}
    for name in _REFS:
        if hasattr(wait, name):
            new[name] = tuple(sorted(getattr(wait, name)))
    left_s, most_s = getattr(wait, "left_s", None), getattr(wanted, "left_s", None)
    if left_s is not None and most_s is not None and most_s - 60 <= left_s <= most_s:
        new["left_s"] = most_s
    if isinstance(wait, w.MutexWait) and wait.address and not wanted.address:
        new["address"] = 0
    if isinstance(wait, w.TcpWait) and wait.call != "accept":
        assert wait.total_bytes is not None
        new["total_bytes"] = None
        if wait.moved_bytes and wanted.moved_bytes:
            new["moved_bytes"] = wanted.moved_bytes
    if isinstance(wait, w.PollWait) and len(wait.waits) == len(wanted.waits):
        new["waits"] = tuple(_seen(*both) for both in zip(wait.waits, wanted.waits, strict=True))
    return msgspec.structs.replace(wait, **new)


@pytest.mark.parametrize("told", programs(), indirect=True)
def test_the_object_of_a_wait_is_named(told: list[dict[str, Any]]) -> None:
    """By its path, its address, its process; and who cannot be proven to hang is not."""
    for fact in told:
        pid = int(proc.status_field(fact["tid"], "Tgid"))
        looks = [process_look.look(pid, time.monotonic(), process_look.thread_reader())]
        found: list[Any] = []

        def fits(
            fact: dict[str, Any] = fact,
            looks: list[process_look.ProcLook] = looks,
            found: list[Any] = found,
        ) -> bool:
            reader = process_look.thread_reader()
            looks.append(process_look.look(looks[0].pid, time.monotonic(), reader))
            found[:] = _read(fact, *looks[-2:])
            return found[0] == found[1]

        try:
            wait_until(fits, 20, "it waits as it has said")
        except AssertionError:
            assert found[0] == found[1], f"line {fact['line']}"
        if fact["file"]:
            wait_until(lambda fact=fact: _is_at_its_line(fact), 20, f"it is at {fact['line']}")


def _read(
    fact: dict[str, Any], first: process_look.ProcLook, second: process_look.ProcLook
) -> tuple[tuple[w.Wait, bool], tuple[w.Wait, bool]]:
    """What is read and what is wanted: the wait, and whether it is proven that it never ends."""
    facts = {one.tid: one for one in process_look.settled(first, second)}
    wanted = _wanted(fact["wait"])
    sealed = process_look.sealed(first, second, frozenset())
    return (_seen(facts[fact["tid"]].wait, wanted), bool(sealed)), (wanted, fact["proven"])


def _is_at_its_line(fact: dict[str, Any]) -> bool:
    """By the stack of the very thread: the number of a thread is the same for both readers."""
    pid = int(proc.status_field(fact["tid"], "Tgid"))
    command = pyspy.command(pyspy.find(), pid, nonblocking=True)
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    thread = next((t for t in pyspy.parse(text, pid) or () if t.os_id == fact["tid"]), None)
    here = fact["file"], fact["line"]
    return (
        thread is not None
        and thread.owns_gil == fact["owns_gil"]
        and (here in [(frame.file, frame.line) for frame in thread.frames])
    )


POLLS = """
import pathlib, sys, time

def until_there(flag, tries):
    print(flush=True)
    while not flag.exists() and tries:
        time.sleep(0.2)

until_there(pathlib.Path(sys.argv[1]), 5)
"""


def test_the_path_that_is_polled_for_is_named(tmp_path: Path) -> None:
    """An object of pathlib, too, of which py-spy shows the address alone."""
    script, wanted = tmp_path / "polls.py", str(tmp_path / "rank1" / "ready")
    script.write_text(POLLS)
    command = (sys.executable, str(script), wanted)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()

            def seen() -> tuple[str, str] | None:
                reads = pyspy.command(pyspy.find(), process.pid, nonblocking=True, variables=True)
                said = subprocess.run(reads, capture_output=True, text=True, check=False)
                return pyspy.path_variable(said.stdout, process.pid, process.pid)

            assert wait_until(seen, 20, "the path was asked for once") == ("flag", wanted)
            assert proc.path_text(process.pid, 8) is None
        finally:
            process.kill()
