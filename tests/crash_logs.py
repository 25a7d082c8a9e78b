"""Logs of programs that really fail, each in many layouts, with the failure that they show."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support import REPOSITORY

HEAD = """\
import os, sys
for number in range(3):
    print(f"step {number} loss {2.0 - number / 10:.3f}", file=sys.stderr, flush=True)
"""
MAIN = """
def main():
    step(3)
if __name__ == "__main__":
    main()
"""
SHELLS = ("segfault", "killed", "abort")
"""Kinds that a shell tells of."""
STACKLESS = (*SHELLS, "syntax")


class Program(NamedTuple):
    """Source of a program that fails in its line `# here`."""

    kind: str
    type: str
    message: str
    source: str

    @property
    def line(self) -> int | None:
        """None: it prints no stack."""
        lines = self.source.splitlines()
        return next((at for at, line in enumerate(lines, 1) if "# here" in line), None)

    @property
    def needs_torch(self) -> bool:
        return "torch" in self.source


class CrashLog(NamedTuple):
    """A log, and what `wtrain diagnose` has to name."""

    name: str
    text: str
    program: Program
    shows_type: bool = True
    shows_line: bool = True


def programs() -> list[Program]:
    """All of tests/programs/failing.txt."""
    text = (REPOSITORY / "tests" / "programs" / "failing.txt").read_text("utf-8")
    found = []
    for block in text.split("## ")[1:]:
        head, _, body = block.partition("\n")
        kind, type_, message = (part.strip() for part in head.split("|"))
        found.append(Program(kind, type_, message, HEAD + body + MAIN))
    return found


def run(program: Program, folder: Path) -> str:
    """What it prints."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(program.source)
    command = [sys.executable, "train.py"]
    if program.kind in SHELLS:
        command = ["bash", "-c", f"ulimit -c 0; {sys.executable} train.py; exit 1"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode or program.kind == "thread", program
    return done.stderr


def _each(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def _clock(text: str) -> str:
    lines = enumerate(text.splitlines())
    return "".join(f"2026-05-01 10:00:{at % 60:02d},120 {line}\n" for at, line in lines)


def _bars(text: str) -> str:
    """A progress bar that is drawn anew, also in the middle of a traceback."""
    bars = (f"Epoch 1:  {at}%|#{at}  | {at}/100 [00:0{at}<01:00,  1.6it/s]" for at in range(1, 8))
    lines = text.splitlines()
    middle = next((n + 3 for n, line in enumerate(lines) if line.startswith("Traceback")), 3)
    drawn = "\r".join(bars)
    return "\n".join([drawn, *lines[:middle], f"{drawn}\n", *lines[middle:], ""])


def _windows(text: str) -> str:
    """Paths of Windows; the user's own script on another drive."""
    text = re.sub(r'"/[^"]*?/(?:lib/)?python3\.\d+/', lambda _: '"C:\\conda\\Lib\\', text)
    return re.sub(r'"[^"]*?train\.py"', lambda _: '"D:\\my work\\train.py"', text)


def _coloured(text: str) -> str:
    return "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines())


def _unrelated(text: str) -> str:
    """Messages of other printers before and after it."""
    before = (
        "INFO:root:loading 3 shards\nUserWarning: lr_scheduler.step() before optimizer.step()\n"
    )
    return (
        f"{before}{text}wandb: Run history:\nwandb: loss 2.0\nsrun: error: node7: task 0: Exited\n"
    )


LAYOUTS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "torch": _each("[rank1]: "),
    "torchrun": _each("[default0]:"),
    "srun": _each("1: "),
    "ray": _each("(Trainer pid=92, ip=10.0.0.1) "),
    "clock": _clock,
    "clock and rank": lambda text: _each("[rank3]:")(_clock(text)),
    "bars": _bars,
    "windows": _windows,
    "coloured": _coloured,
    "quoted": _each("    "),
    "other messages": _unrelated,
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
}


def logs(program: Program, text: str) -> Iterator[CrashLog]:
    """The log in each layout, and parts of it."""
    for name, layout in LAYOUTS.items():
        yield CrashLog(name, layout(text), program)
    lines = text.rstrip().splitlines()
    last = next((n for n, line in enumerate(lines) if line.startswith(program.type)), None)
    if last is None:
        return
    yield CrashLog("last line", "\n".join(lines[last:]), program, shows_line=False)
    frames = [n for n, line in enumerate(lines) if f"line {program.line}, in" in line]
    if frames and program.kind == "value":
        cut = "\n".join(lines[: frames[-1] + 1])
        yield CrashLog("cut", cut, program, shows_type=False)
        ranks = (_each("[rank0]: ")(VICTIM), _each("[rank1]: ")(text))
        mixed = itertools.zip_longest(*(one.splitlines() for one in ranks), fillvalue="")
        yield CrashLog("two ranks", "\n".join(line for pair in mixed for line in pair), program)


VICTIM = """\
Traceback (most recent call last):
  File "/home/me/victim.py", line 61, in reduce
    dist.all_reduce(x)
RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2121
"""
