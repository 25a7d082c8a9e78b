"""Text of others reaches a terminal without anything that a terminal obeys, in every command."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.hostile_run import HOSTILE, make_hostile_run
from tests.support import bin_path, run_wtrain, start_wtrain, wait_until
from tests.terminal import TerminalCommand

pytestmark = pytest.mark.timeout(300)

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[8m\x9b31m\r\u202eevil\u200b\x08"
OUR_COLOURS = re.compile(r"\x1b\[(?:[012]|3[1-3])m")
READING = """
    status|status --json|ps --all|ps --all --json|show RUN|show RUN --all|show RUN --raw
    show RUN --rank 0|show RUN --json|show RUN/stalls/0030|stalls|stalls --json|report
    report --json|report -o page.txt|logs -n 50|logs --rank 3|logs --machine EVIL|probe|replay
    checkpoints ck|checkpoints ck --json|clean|diagnose EVIL.txt|diagnose none-EVIL
    config check EVIL.yaml|config check EVIL.yaml --json|config check RUN|config explain EVIL
    config show --config EVIL.yaml|status EVIL|show EVIL|report RUN/EVIL|--EVIL|EVIL|status --EVIL
    run --config EVIL.yaml -- true|run -- ./EVIL|run --preset EVIL -- true|restart EVIL|stop EVIL
    run --notify EVIL -- true|remedies --EVIL|doctor --EVIL|dump EVIL|notify-test --notify EVIL
"""


def obeyed(shown: str, *, output: bool = False) -> str:
    """Everything in it that a terminal would obey; its own CR before LF is none of it.

    A training's output may have colours of its own and the CR of progress bars.
    """
    plain = OUR_COLOURS.sub("", shown.replace("\r\n", "\n"))
    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", plain) if output else plain
    return "".join(each for each in plain if not each.isprintable() and each not in "\n\t")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, settings, a log and checkpoints, all of them from somebody else."""
    home = tmp_path_factory.mktemp("hostile")
    run = make_hostile_run(home / "wtrain-runs/sft-20261121-231005-beef")
    with (run / "events.jsonl").open("a") as log:
        log.write('{"v": 1, "type": "attempt_launched\\u001b]0;T\\u0007\\u009b", "seq": 9999}\n')
    attempt = run / "attempts/0031"
    attempt.mkdir(parents=True)
    (attempt / "output.log").write_text("\n".join((EVIL, *HOSTILE, f"[rank3] {EVIL}", "")))
    (home / f"{EVIL}.yaml").write_text(f'"\\e]0;T\\a\\u202e": 1\n"no\\ekey": "{chr(0x202E)}"\n')
    (home / f"{EVIL}.txt").write_text(
        f'Traceback (most recent call last):\n  File "{EVIL}.py", line 3, in {EVIL}\n'
        f"    {EVIL}()\nRuntimeError: {EVIL}\n"
    )
    (home / "ck").mkdir()
    for name in (f"step-{EVIL}-10.pt", "step-20.pt"):
        (home / "ck" / name).write_bytes(b"PK\x03\x04 cut off" + EVIL.encode())
    return home


@pytest.mark.parametrize("line", re.split(r"[|\n]\s*", READING.strip()))
def test_no_command_passes_on_what_a_terminal_obeys(place: Path, line: str) -> None:
    """Of a hostile run, hostile settings and files, and hostile words on the command line."""
    run = next((place / "wtrain-runs").glob("sft-*"))
    words = [word.replace("RUN", str(run)).replace("EVIL", EVIL) for word in line.split()]
    shown = TerminalCommand([str(bin_path("wtrain")), *words], place)
    assert shown.end() != 70, shown.bytes.decode()
    text = shown.bytes.decode()
    assert obeyed(text, output=words[0] == "logs") == "", ascii(text[-3000:])


def test_files_of_evidence_hold_nothing_that_a_terminal_obeys(place: Path) -> None:
    """They are read with cat and less."""
    texts = [path for path in place.rglob("*") if path.suffix in (".md", ".txt") and "stalls" in
             path.parts]  # fmt: skip
    assert any(path.name == "SUMMARY.md" for path in texts)
    assert [path for path in texts if obeyed(path.read_text("utf-8"))] == []


HOSTILE_TRAINING = f"""
import ctypes, os, sys, threading, time
ctypes.CDLL(None).prctl(15, {EVIL[:9].encode()!r})
threading.Thread(target=time.sleep, args=(600,), name={EVIL!r}, daemon=True).start()
print({EVIL!r}, flush=True)
sys.stdout.buffer.write({EVIL!r}.encode() + b"\\xe2\\x80")
sys.stdout.flush()
print("begun", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.05)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gives a process a name with prctl")
def test_a_living_process_cannot_reach_the_terminal_of_who_looks(tmp_path: Path) -> None:
    """Its output by `attach` and `logs`, its name and arguments by `dump`; --raw passes on."""
    (tmp_path / "train.py").write_text(HOSTILE_TRAINING)
    (tmp_path / "py").symlink_to(sys.executable)
    running = start_wtrain("run", "--", "./py", "train.py", EVIL, cwd=tmp_path)
    wait_until(lambda: "begun" in running.stdout, 30, "the training has written")
    assert EVIL.partition("\r")[0] in running.stdout, "the one who started it has all of it"
    commands = [TerminalCommand([str(bin_path("wtrain")), "attach", *more], tmp_path)
                for more in ((), ("--raw",))]  # fmt: skip
    wait_until(lambda: all(b"begun" in one.read() for one in commands), 30, "it is shown")
    (pid,) = [int(path.name) for path in Path("/proc").glob("[0-9]*")
              if EVIL.encode() in _command(path) and b"train.py" in _command(path)
              and os.path.realpath(path / "cwd") == os.path.realpath(tmp_path)
              and b"wtrain\0" not in _command(path)]  # fmt: skip
    for words in (["dump", "--pid", str(pid)], ["logs"], ["dump"], ["status"], ["show", "--raw"]):
        shown = TerminalCommand([str(bin_path("wtrain")), *words], tmp_path)
        shown.end()
        text = shown.bytes.decode("utf-8", "replace")
        assert obeyed(text, output=words == ["logs"]) == "", ascii(text[-3000:])
    (tmp_path / "finish").touch()
    running.result(60).check(0)
    for one in commands:
        one.end()
    status_line = re.compile(r"\x1b\[(?:[02]?K|\?7[hl])")
    shown, raw = (status_line.sub("", one.bytes.decode("utf-8", "replace")) for one in commands)
    assert "owned" not in shown
    assert obeyed(shown, output=True) == "", ascii(shown)
    assert "\x1b]0;owned\x07" in raw
    ended = run_wtrain("report", cwd=tmp_path).check(0)
    assert obeyed(ended.stdout + ended.stderr) == ""


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
