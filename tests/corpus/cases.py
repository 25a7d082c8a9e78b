"""Reads the corpus: cases in plain text, and the same stacks as other tools would print them.

A case is a header line `##### name`, `key: value` lines, then files, each after `=== file name`.
`expect` lists the families that are right, the most exact one first; insufficient-evidence stands
for "I do not know". A file `exit-of-rank0.txt` tells how that rank ended.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.model import ExitStatus, Explanation
from watchdog_train.evidence.text.gather import gather
from watchdog_train.evidence.text.sources import Source

FOLDER = Path(__file__).parent
UNKNOWN = "insufficient-evidence"
SURE = 0.8
"""An answer at least so likely must not be wrong."""
_FRAME = re.compile(r"    (?P<name>\S.*) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)\Z")
_THREAD = re.compile(
    r"Thread (?P<id>\w+) \((?P<status>active|idle)(?P<gil>\+gil)?\)(?:: \"(?P<name>.*)\")?\Z"
)
PREFIXES = (
    "/opt/conda/envs/train/lib/python3.10/site-packages/",
    "/home/u/.venv/lib/python3.12/site-packages/",
    "C:\\Users\\u\\venv\\Lib\\site-packages\\",
    "/usr/local/lib/python3.8/dist-packages/",
)


@dataclass(frozen=True)
class Case:
    """One piece of evidence with the answers that are right."""

    name: str
    expect: tuple[str, ...]
    sources: tuple[Source, ...]
    culprit: str | None = None
    at_most: float = 1.0
    healthy: bool = False


def read_cases(part: str) -> list[Case]:
    """All cases of one folder here."""
    return [case for path in sorted((FOLDER / part).glob("*.txt")) for case in _read(path)]


def _read(path: Path) -> list[Case]:
    cases = []
    for block in re.split(r"(?m)^##### ", path.read_text(encoding="utf-8"))[1:]:
        head, *files = re.split(r"(?m)^=== ", block)
        name, *lines = head.strip().splitlines()
        keys = dict(line.split(": ", 1) for line in lines if ": " in line)
        sources = []
        for file in files:
            title, _, text = file.partition("\n")
            sources.append(Source(name=title.strip(), text=text))
        expect = tuple(word.strip() for word in keys["expect"].split("|"))
        cases.append(
            Case(
                name=f"{path.stem}/{name}",
                expect=expect,
                sources=tuple(sources),
                culprit=keys.get("culprit"),
                at_most=float(keys.get("at_most", "1")),
                healthy="healthy-slow" in expect,
            )
        )
    return cases


def gathered(case: Case) -> Evidence:
    """The evidence of its files; what a keeper would know of the end comes from its own file."""
    found = gather(case.sources)
    told = next((one.text for one in case.sources if one.name.startswith("exit-of-")), None)
    if told is None:
        return found
    code = int(told.partition("exit code: ")[2])
    end = ExitStatus(
        code=code if code >= 0 else None, signal=-code if code < 0 else None, how_known="keeper"
    )
    return msgspec.structs.replace(found, why="crash" if code else found.why, exit=end)


def judged(case: Case, found: Explanation) -> list[str]:
    """What one answer counts as."""
    family = found.family or UNKNOWN
    right = family in case.expect and found.confidence <= case.at_most
    words = ["judged", "right" if right else "wrong"]
    if family not in case.expect and found.confidence >= SURE:
        words.append("sure and wrong")
    if case.healthy:
        words.append("healthy")
        if family not in case.expect and found.kind in ("hang", "crash"):
            words.append("false verdict")
    if case.culprit is not None:
        words.append("culprit asked")
        same = right and (named(found) or "none") == case.culprit
        words.append("culprit right" if same else "culprit wrong")
    return words


def named(found: Explanation) -> str | None:
    """`rank 0 worker`, `rank 3`, `rank`: the root as the corpus writes it, without pids."""
    if found.root is None:
        return None
    who = found.root.who
    rank = "rank" if who.rank is None else f"rank {who.rank}"
    return rank if who.role == "rank" else f"{rank} {who.role}"


def renderings(case: Case) -> dict[str, Case]:
    """The case as it is, and its py-spy stacks as JSON and as faulthandler prints them."""
    found = {"as written": case}
    for name, render in (("py-spy JSON", _as_json), ("faulthandler", _as_faulthandler)):
        sources = tuple(_rendered(source, render) for source in case.sources)
        if sources != case.sources:
            found[name] = replace(case, sources=sources)
    return found


def _rendered(source, render):
    threads = _threads(source.text)
    if not threads or any(_native(frame[1]) for _, frames in threads for frame in frames):
        return source
    pid = re.search(r"pid(\d+)", source.name) or re.search(r"\AProcess (\d+)", source.text)
    name, text = render(source.name, int(pid[1]) if pid else 1, threads)
    return Source(name=name, text=text)


def _threads(text: str):
    """Threads and frames of a file that holds nothing but one py-spy dump."""
    threads = []
    for line in text.splitlines():
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            threads.append((head, []))
        elif frame and threads:
            threads[-1][1].append((frame["name"], frame["file"], int(frame["line"] or 0)))
        elif line.strip() and not line.startswith(("Process ", "Python v", "        ")):
            return []
    return threads


def _native(file: str) -> bool:
    return not file.endswith((".py", ">", ".pyx"))


def _moved(name: str, file: str, line: int) -> tuple[str, int]:
    """The file below another machine's prefix, at another line: neither may matter."""
    number = int(hashlib.sha256(f"{name}{file}".encode()).hexdigest()[:4], 16)
    prefix = PREFIXES[number % len(PREFIXES)]
    if file.startswith(("<", "/")):
        return file, line
    path = prefix + (file.replace("/", "\\") if "\\" in prefix else file)
    return path, line + number % 90 + 1


def _as_json(name: str, pid: int, threads):
    entries = []
    for number, (head, frames) in enumerate(threads):
        moved = [(fn, *_moved(fn, file, line)) for fn, file, line in frames]
        entries.append(
            {
                "pid": pid,
                "thread_id": number,
                "thread_name": head["name"],
                "os_thread_id": pid + number,
                "active": head["status"] == "active",
                "owns_gil": bool(head["gil"]),
                "frames": [
                    {"name": fn, "filename": file, "module": None, "line": line, "locals": None}
                    for fn, file, line in moved
                ],
            }
        )
    return re.sub(r"\.txt$", ".json", name), json.dumps(entries)


def _as_faulthandler(name: str, _: int, threads):
    lines = []
    for number, (_, frames) in enumerate(reversed(threads)):
        current = "Current thread" if number == len(threads) - 1 else "Thread"
        lines.append(f"{current} 0x{number + 1:016x} (most recent call first):")
        for function, file, line in frames:
            path, at = _moved(function, file, line)
            lines.append(f'  File "{path}", line {at} in {function}')
        lines.append("")
    return name, "\n".join(lines)
