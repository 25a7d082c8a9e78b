"""`wtrain diagnose` on logs of programs that really failed, in many layouts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import pytest

from tests.support import REPOSITORY
from watchdog_train.core.model import signal_name
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.explain.judge import judge
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.diagnosis_text import diagnosis_text

LEAST_RIGHT = 0.98
SAMPLE = ("value", "fatal", "killed", "chained", "pool")
"""Kinds that take no time to fail."""
FRAME = """\
import os, sys
for number in range(3):
    print(f"step {number} loss {2.0 - number / 10:.3f}", file=sys.stderr, flush=True)
BODY
def main():
    step(3)
if __name__ == "__main__":
    main()
"""
VICTIM = """\
Traceback (most recent call last):
  File "/home/me/victim.py", line 61, in reduce
RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2121
"""
BARS = "\r".join(f" {n}%|#{n}  | {n}/100 [00:0{n}<01:00,  1.6it/s]" for n in range(1, 8)) + "\n"


class Program(NamedTuple):
    """What is to be named of it: the last line with `# here` is the user's; None: no stack."""

    kind: str
    type: str
    message: str
    source: str
    line: int | None


def programs() -> Iterator[Program]:
    text = (REPOSITORY / "tests" / "programs" / "failing.txt").read_text("utf-8")
    for block in text.split("## ")[1:]:
        head, _, body = block.partition("\n")
        source = FRAME.replace("BODY\n", body)
        lines = [n for n, line in enumerate(source.splitlines(), 1) if "# here" in line]
        kind, type_, message = (part.strip() for part in head.split("|"))
        yield Program(kind, type_, message, source, lines[-1] if lines else None)


def printed(program: Program, folder) -> str:
    """By the program, or by the shell that started it."""
    (folder / "train.py").write_text(program.source)
    command = f"ulimit -c 0; {sys.executable} train.py; exit"
    command = ["bash", "-c", command] if program.line is None else [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode or program.kind == "thread", program
    return done.stderr


def before_each(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def with_clock(text: str) -> str:
    lines = enumerate(text.splitlines())
    return "".join(f"2026-05-01 10:00:{at % 60:02d},120 {line}\n" for at, line in lines)


def with_bars(text: str) -> str:
    """Drawn anew again and again, also in the middle of a traceback."""
    head, found, rest = text.partition("Traceback (most recent call last):\n")
    first, end, rest = rest.partition("\n")
    return f"{BARS}{head}{found}{first}{end}{BARS if found else ''}{rest}"


def on_windows(text: str) -> str:
    text = re.sub(r'"/[^"]*?/(?:lib/)?python3\.\d+/', lambda _: '"C:\\conda\\Lib\\', text)
    return re.sub(r'"[^"]*?train\.py"', lambda _: '"D:\\my work\\train.py"', text)


LAYOUTS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "torch": before_each("[rank1]: "),
    "torchrun": before_each("[default0]:"),
    "srun": before_each("1: "),
    "ray": before_each("(Trainer pid=92, ip=10.0.0.1) "),
    "another host": before_each("host7: "),
    "clock": with_clock,
    "clock and rank": lambda text: before_each("[rank3]:")(with_clock(text)),
    "bars": with_bars,
    "windows": on_windows,
    "coloured": lambda text: re.sub("(?m)^(.*)$", "\x1b[31m\\1\x1b[0m", text),
    "quoted": before_each("    "),
    "others": lambda text: (
        f"UserWarning: slow\n{text}wandb: loss 2.0\nsrun: error: node7: Exited\n"
    ),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
}


def logs(program: Program, text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Layout, text, and what is to be seen there: the type, the line, or both."""
    for name, layout in LAYOUTS.items():
        yield name, layout(text), {"type", "line"}
    head, _, message = text.rpartition(f"\n{program.type}")
    if not head:
        return
    yield "last line", program.type + message, {"type"}
    if program.kind == "value":
        yield "cut", head, {"line"}
        ranks = (before_each("[rank0]: ")(VICTIM), before_each("[rank1]: ")(text))
        pairs = zip_longest(*(one.splitlines() for one in ranks), fillvalue="")
        yield "two ranks", "\n".join(line for pair in pairs for line in pair), {"type", "line"}


def problem(program: Program, shown: set[str], path) -> str:
    """What is said wrongly of the log at this path."""
    given = read_inputs([str(path)])
    found = judge(given.evidence)
    text = diagnosis_text(found, given.evidence, given.failures, given.read, remedy_words())
    assert "standing still" not in text
    assert found.kind not in ("hang", "stopped", "slow"), text
    assert all(len(line) <= 80 or " " not in line.strip() for line in text.split("\n")), text
    first = given.failures[0] if given.failures else None
    if first is None:
        return text
    named = first.fact.type or signal_name(first.signal or 0)
    right = named == program.type and program.message in first.fact.message
    own = first.fact.own
    at = own is not None and own.file.endswith("train.py") and own.line == program.line
    wrong = ("type" in shown and not right) or ("line" in shown and program.line and not at)
    return text.split("\n")[0] if wrong else ""


def wrong_ones(chosen, folder) -> tuple[list[str], int]:
    wrong, total = [], 0
    for program in chosen:
        for name, text, shown in logs(program, printed(program, folder)):
            (folder / "log").write_bytes(text.encode())
            total += 1
            if found := problem(program, shown, folder / "log"):
                wrong.append(f"{program.kind} {program.type}, {name}: {found}")
    return wrong, total


def test_a_sample_of_logs_names_the_failure(tmp_path):
    chosen = {one.kind: one for one in programs() if one.kind in SAMPLE}
    wrong, total = wrong_ones(chosen.values(), tmp_path)
    assert total >= len(SAMPLE) * len(LAYOUTS)
    assert len(wrong) <= (1 - LEAST_RIGHT) * total, "\n".join(wrong)


@pytest.mark.slow
def test_all_logs_name_the_failure(tmp_path):
    wrong, total = wrong_ones(programs(), tmp_path)
    print(f"{total - len(wrong)} of {total} logs right")
    assert total >= 200
    assert len(wrong) <= (1 - LEAST_RIGHT) * total, "\n".join(wrong)
