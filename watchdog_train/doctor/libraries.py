"""The training's libraries, read by its own interpreter, against what the hooks are armed for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping

import msgspec

from watchdog_train.client.libraries import HOOKS
from watchdog_train.doctor import Check

ASK_S = 20.0
_NUMBER = re.compile(r"(\d+)\.(\d+)")
_ASK = """\
import json, sys
found = {"python": ".".join(map(str, sys.version_info[:3]))}
try:
    from importlib import metadata
    for name in sys.argv[1:]:
        try:
            found[name] = metadata.version(name.replace("_", "-"))
        except Exception:
            pass
except ImportError:
    pass
print(json.dumps(found))
"""


def libraries(python: str) -> Iterator[Check]:
    """One line for the interpreter, one for each library that it has and we hook."""
    ranges = {row[1]: (row[2], row[3]) for row in HOOKS.values()}
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *ranges],
            capture_output=True,
            check=False,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, str])
    except (OSError, IndexError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        mend = "name the training's interpreter with --python"
        says = f"{python} did not tell its libraries: {type(error).__name__}"
        yield Check(name="python", status="warning", says=says, mend=mend)
        return
    yield from judged(found, ranges, python)


def judged(
    found: Mapping[str, str],
    ranges: Mapping[str, tuple[tuple[int, int], tuple[int, int]]],
    python: str,
) -> Iterator[Check]:
    """Each version against its range."""
    for name, (first, beyond) in ranges.items():
        version = found.get(name)
        if version is None:
            continue
        match = _NUMBER.match(version)
        fits = match is not None and first <= (int(match[1]), int(match[2])) < beyond
        span = f"{first[0]}.{first[1]} up to, but not {beyond[0]}.{beyond[1]}"
        label = f"{version} ({python})" if name == "python" else version
        yield Check(
            name=name,
            status="ok" if fits else "warning",
            says=label if fits else f"{label}: its hooks are armed for {span}",
            mend=None if fits else "weaker signals are used: steps are not seen, only activity",
        )
