"""What came of the cases: one by one, by kind of fault, and over several campaigns."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from tests.chaos.plan import CaseSpec

Outcome = Literal["survived", "failed", "missed"]
SCHEMA_VERSION = 1
LIBRARIES = ("torch", "transformers", "psutil", "py-spy")


@dataclass(frozen=True)
class Result:
    """What came of one case."""

    seed: int
    number: int
    fault: str
    shape: str
    trouble: str
    moment: str
    outcome: Outcome
    """missed: the run ended, or had no such process, before the fault could strike. The checks
    were made all the same, but nothing was tried."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    description: str = ""
    missed: str = ""

    @classmethod
    def of(cls, spec: CaseSpec, told: dict[str, Any]) -> Result:
        """From the answer of the process that ran the case."""
        names = ("seed", "number", "fault", "shape", "trouble")
        drawn = {name: getattr(spec, name) for name in names}
        return cls(**drawn, moment=str(spec.moment), **told)

    def line(self) -> str:
        """For the screen."""
        trouble = f" ({self.trouble} at first)" if self.trouble != "none" else ""
        return (
            f"{self.outcome:8} {self.number:4}  {self.fault}; {self.shape}{trouble}; "
            f"{self.moment}; {self.seconds:.0f} s"
        )

    def complaint(self) -> str:
        """A failure, and how to run it again."""
        lines = [f"FAILED: scripts/chaos --seed {self.seed} --only {self.number}", self.line()]
        lines += [f"  {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def machine() -> dict[str, str]:
    """Where the numbers are from."""
    found = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def to_json(results: Iterable[Result], skipped: dict[str, int]) -> str:
    """The whole of a campaign; descriptions of failures included."""
    told = {
        "schema_version": SCHEMA_VERSION,
        "machine": machine(),
        "skipped": skipped,
        "cases": [asdict(result) for result in sorted(results, key=lambda one: one.number)],
    }
    return json.dumps(told, indent=1) + "\n"


def read(paths: Iterable[Path]) -> tuple[list[Result], dict[str, int], dict[str, str]]:
    """Several campaigns as one; a case that is in more than one of them counts once, the newest."""
    cases: dict[tuple[int, int], Result] = {}
    skipped: dict[str, int] = {}
    where: dict[str, str] = {}
    for path in paths:
        told = json.loads(path.read_text("utf-8"))
        for fields in told["cases"]:
            result = Result(**fields)
            cases[result.seed, result.number] = result
        for why, count in told["skipped"].items():
            skipped[why] = skipped.get(why, 0) + count
        where = told["machine"]
    return list(cases.values()), skipped, where


def markdown(results: list[Result], skipped: dict[str, int], where: dict[str, str]) -> str:
    """Tables for the page on reliability."""
    tried = [result for result in results if result.outcome != "missed"]
    failed = [result for result in tried if result.outcome == "failed"]
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    head = (
        f"{len(tried)} faults tried, {len(tried) - len(failed)} survived, {len(failed)} not; "
        f"in {len(results) - len(tried)} more cases the run had ended before the fault could "
        f"strike. Seeds {seeds}; {', '.join(f'{key} {value}' for key, value in where.items())}."
    )
    lines = [head, ""]
    if skipped:
        lines += [f"- not tried: {count} cases, {why}" for why, count in sorted(skipped.items())]
        lines.append("")
    lines += _table("fault", [(one.fault, one) for one in results])
    lines += ["", *_table("training", [(one.shape, one) for one in results])]
    if failed:
        lines += ["", "Not survived:", ""]
        lines += [
            f"- `scripts/chaos --seed {one.seed} --only {one.number}`: {one.fault}; {one.shape}; "
            f"{one.moment}: {_first(one.problems)}"
            for one in failed
        ]
    return "\n".join(lines) + "\n"


def _table(name: str, rows: list[tuple[str, Result]]) -> list[str]:
    lines = [f"| {name} | tried | survived | missed |", "|---|---|---|---|"]
    for kind in sorted({kind for kind, _ in rows}):
        outcomes = [result.outcome for other, result in rows if other == kind]
        survived, missed = outcomes.count("survived"), outcomes.count("missed")
        lines.append(f"| {kind} | {len(outcomes) - missed} | {survived} | {missed} |")
    return lines


def _first(problems: list[str]) -> str:
    """The kind of problem: what follows a colon names paths and pids of that machine."""
    return problems[0].splitlines()[0].partition(": {")[0].partition(": [")[0] if problems else "?"
