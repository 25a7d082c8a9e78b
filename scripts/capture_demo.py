#!/usr/bin/env python3
"""Run `wtrain demo` in a terminal and put what it shows into the README and into the tests.

    python scripts/capture_demo.py            run the demo, write tests/golden/demo/ and README.md
    python scripts/capture_demo.py --recorded write README.md from what was recorded before

The screen is kept whole, with paths made relative, beside the event log of the same run. The
README shows it trimmed: `...` stands for what was left out.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
RECORDED = REPOSITORY / "tests" / "golden" / "demo"
SCREEN, EVENTS = RECORDED / "screen.txt", RECORDED / "events.jsonl"
STATUS, FILES = RECORDED / "status.txt", RECORDED / "files.txt"
COLUMNS = 98
HOME = "/home/mia"
"""Stands for every directory of the machine that made the recording."""

LEFT_OUT = (
    re.compile(r"demo: (cd|train\.py|that was)"),
    re.compile(r"wtrain: (wtrain status|evidence 0001|next:|attempt 2 (starts|runs))"),
    re.compile(r"wtrain: (every process|settings tried|shown to have|report:)"),
    re.compile(r"epoch \d+  step (?!(10|80|90|160)/)"),
    re.compile(r"(going on from|training finished)"),
)


def main() -> int:
    """Record, unless told not to, and write the README."""
    if "--recorded" not in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as directory:
            record(Path(directory).resolve())
    text = README.read_text("utf-8")
    for name, shown in blocks().items():
        text = replaced(text, name, shown)
    README.write_text(text, "utf-8")
    return 0


def blocks() -> dict[str, str]:
    """What the README shows of the recording, by the name of its place there."""
    status = STATUS.read_text("utf-8").partition("\n\n")[0]
    lines = [part for line in status.splitlines() for part in _wrapped(line, " " * 13)]
    return {"demo": trimmed(SCREEN.read_text("utf-8")), "status": "\n".join(lines) + "\n"}


def replaced(text: str, name: str, shown: str) -> str:
    """The page with one of its marked blocks replaced."""
    begin, end = f"<!-- {name} -->\n```text\n", f"```\n<!-- /{name} -->"
    head, _, rest = text.partition(begin)
    return head + begin + shown + end + rest.partition(end)[2]


def record(directory: Path) -> None:
    """Run the demo below `directory`; keep its screen, its event log, its status and its files."""
    screen = perform(directory)
    (run,) = directory.glob("wtrain-demo/wtrain-runs/*-*")
    status = subprocess.run(
        [sys.executable, "-m", "watchdog_train", "status"],
        cwd=directory / "wtrain-demo", stdout=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    RECORDED.mkdir(parents=True, exist_ok=True)
    events = (run / "events.jsonl").read_text("utf-8")
    SCREEN.write_text(without_places(screen, directory), "utf-8")
    EVENTS.write_text(without_places(events, directory), "utf-8")
    STATUS.write_text(without_places(status.stdout, directory), "utf-8")
    FILES.write_text("\n".join(files) + "\n", "utf-8")


def perform(directory: Path) -> str:
    """What a terminal of 100 columns shows of the demo."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "watchdog_train", "demo"]
    process = subprocess.Popen(
        command, cwd=directory, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    with os.fdopen(master, "rb", buffering=0) as stream:
        while True:
            try:
                block = stream.read(65536)
            except OSError:  # the last process has closed the terminal
                break
            if not block:
                break
            shown += block
    screen = shown.decode("utf-8", "replace").replace("\r\n", "\n")
    if process.wait() != 0:
        raise RuntimeError(f"the demo failed:\n{screen}")
    return screen


def without_places(text: str, directory: Path) -> str:
    """Text without the names of this machine and its directories."""
    text = text.replace(str(directory), HOME)
    text = text.replace(str(Path(sys.executable).parent), f"{HOME}/venv/bin")
    text = text.replace(str(Path(sys.prefix)), f"{HOME}/venv")
    text = text.replace(str(REPOSITORY), f"{HOME}/watchdog_train")
    text = text.replace(sys.base_prefix, "/usr")
    text = re.sub(r'("host":)"[^"]+"', r'\1"bench"', text)
    text = re.sub(r'("boot_id":)"[^"]*"', r'\1"0"', text)
    return re.sub(rf"/dev/shm/wtrain-\d+-|{re.escape(tempfile.gettempdir())}/", "/dev/shm/", text)


def trimmed(screen: str) -> str:
    """What the README shows of a screen."""
    lines: list[str] = []
    for line in screen.splitlines():
        if any(pattern.match(line) for pattern in LEFT_OUT):
            if lines and lines[-1] != "..." and line.startswith("epoch"):
                lines.append("...")
            continue
        short = line.replace(f"{HOME}/wtrain-demo/", "")
        lines += _wrapped(short, " " * 8)
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
