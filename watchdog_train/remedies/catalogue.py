"""All remedies, and the checks of the user's choice. Applies nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import get_args

from watchdog_train.core.model import RemedyKind
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.remedies import RemedySpec, parted
from watchdog_train.errors import WtrainError
from watchdog_train.remedies.consequential import DEVICE, TRAINING
from watchdog_train.remedies.execution import EXECUTION
from watchdog_train.remedies.loading import LOADING
from watchdog_train.remedies.user_fixes import ALWAYS, USER_FIXES

CATALOGUE: Mapping[str, RemedySpec] = {
    remedy.id: remedy for remedy in (*LOADING, *EXECUTION, *DEVICE, *TRAINING)
}


def available(platform: str = sys.platform) -> dict[str, RemedySpec]:
    return {name: item for name, item in CATALOGUE.items() if platform in item.platforms}


def script_lines() -> dict[str, str]:
    """RemedySpec id -> the lines that make the setting permanent in the script."""
    return {name: item.script_line for name, item in CATALOGUE.items() if item.script_line}


def remedy_words() -> dict[str, str]:
    """RemedySpec id -> its effect and the line for the script, for the reader of a bundle."""
    lines = {
        name: "; ".join(filter(None, (item.summary, item.script_line)))
        for name, item in CATALOGUE.items()
    }
    return {**USER_FIXES, **ALWAYS, **lines}


def refuse_unknown(policy: Policy, platform: str = sys.platform) -> None:
    """Check the remedies that the user named, all problems at once.

    Raises:
        WtrainError: unknown ids, ids of another platform, or one both asked for and forbidden.
    """
    recovery = policy.recovery
    asked = dict(map(parted, recovery.with_remedies))
    wrong = {word: why for word, number in asked.items() if (why := _not_that_number(word, number))}
    problems = [
        *(f"--with {why}" for why in wrong.values()),
        *_unknown("--with", [word for word in asked if word not in wrong], CATALOGUE),
        *_unknown("--without", recovery.without_remedies, CATALOGUE),
        *_unknown("--allow", recovery.allow, (*CATALOGUE, *get_args(RemedyKind))),
    ]
    for name in asked:
        if name in CATALOGUE and platform not in CATALOGUE[name].platforms:
            problems.append(f"--with {name}: does nothing on {platform}")
        if name in recovery.without_remedies:
            problems.append(f"--with {name}: is forbidden by --without at the same time")
    if problems:
        raise WtrainError(
            "\n".join(problems), hint="`wtrain remedies` lists them", reference="remedy-unknown"
        )


def _not_that_number(word: str, number: int | None) -> str:
    """What is wrong with the number of `ID=N`, "" if it is valid."""
    name, sign, _ = word.partition("=")
    takes = CATALOGUE[name].number if name in CATALOGUE else None
    if takes is None:
        return f"{name}: takes no number" if name in CATALOGUE and (sign or number) else ""
    return f"{word}: takes a whole number from 1, such as {name}={takes}" if sign else ""


def _unknown(option: str, names: Iterable[str], known: Collection[str]) -> list[str]:
    problems = []
    for name in (each for each in names if each not in known):
        if name in ALWAYS:
            why = f"every attempt has it: {ALWAYS[name]}"
        elif name in USER_FIXES:
            why = f"only you can do that: {USER_FIXES[name]}"
        else:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            why = "there is no such remedy" + (f" (did you mean {near[0]}?)" if near else "")
        problems.append(f"{option} {name}: {why}")
    return problems
