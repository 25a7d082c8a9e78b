"""Judges every case of tests/corpus: `python scripts/bench/diagnosis.py [PART]... [-v]`.

Prints how often the first family is right, how often a wrong one was called likely or proven, and
how many healthy captures were called a hang or a crash. The families and the cases were written by
the same people: the numbers show regressions, not accuracy in the field.
"""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.corpus.cases import PARTS, UNKNOWN, Case, judged, read_cases, renderings
from watchdog_train.core.model import Explanation
from watchdog_train.explain.judge import judge


def main() -> int:
    """Judges, prints; 1 when a confident answer is wrong or a healthy capture called sick."""
    parts = [name for name in sys.argv[1:] if not name.startswith("-")] or PARTS
    verbose = "-v" in sys.argv[1:]
    print(f"{platform.platform()}, Python {platform.python_version()}")
    failed = False
    for part in parts:
        counts: Counter[str] = Counter()
        families: set[str] = set()
        started = time.monotonic()
        for case in read_cases(part):
            families |= {name for name in case.expect if name != UNKNOWN}
            for how, rendered in renderings(case).items():
                found = judge(rendered.evidence)
                words = judged(case, found)
                counts.update(words)
                if verbose and "wrong" in words:
                    print(f"  {case.name} ({how}): {shown(case, found)}")
        seconds = time.monotonic() - started
        total = counts["judged"]
        print(
            f"{part}: {counts['right']} of {total} right "
            f"({counts['right'] / max(1, total):.1%}), {len(families)} families; "
            f"confidently wrong {counts['sure and wrong']}; "
            f"healthy called sick {counts['false verdict']} of {counts['healthy']}; "
            f"culprit right {counts['culprit right']} of {counts['culprit asked']}; {seconds:.1f} s"
        )
        failed |= bool(counts["sure and wrong"] or counts["false verdict"])
    return int(failed)


def shown(case: Case, found: Explanation) -> str:
    """One line about a wrong answer."""
    certainty = found.because.certainty if found.because is not None else ""
    wanted = " | ".join(case.expect)
    return f"{found.family} {certainty} instead of {wanted}"


if __name__ == "__main__":
    sys.exit(main())
