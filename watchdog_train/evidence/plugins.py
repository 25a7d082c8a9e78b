"""Families of causes that other packages add, loaded once the evidence is on disk.

A package names a module in the entry point group `watchdog_train.families`; importing it declares
its families. What fails in it costs nothing but one warning with the package's name.
"""

from __future__ import annotations

import functools
import threading
from importlib import metadata
from typing import Any

import msgspec

from watchdog_train.explain.cause import REGISTERED, Family
from watchdog_train.explain.families import known_families

GROUP = "watchdog_train.families"
LOAD_S = 1.0
"""Most seconds for the import of one package's module."""


def all_families() -> tuple[tuple[Family, ...], list[str]]:
    """Ours and those of other packages; and the warnings, to which a failing family adds."""
    warnings: list[str] = []
    families = [*known_families()]
    for entry in metadata.entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.name
        warning = _load(entry)
        if warning:
            warnings.append(f"families of {package}: {warning}")
            continue
        added = [one for one in REGISTERED.values() if _top(one) == entry.module.partition(".")[0]]
        families += [_guarded(one, package, warnings) for one in added]
    return tuple(families), warnings


def _load(entry: metadata.EntryPoint) -> str:
    """What is wrong with it; "" where nothing is."""
    wrong: list[str] = ["not loaded within 1 s"]

    def load() -> None:
        try:
            entry.load()
            wrong[0] = ""
        except BaseException as error:  # noqa: BLE001 - somebody else's code
            wrong[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=load, daemon=True, name="families")
    thread.start()
    thread.join(LOAD_S)
    return wrong[0]


def _top(one: Family) -> str:
    """The top module that has declared it."""
    function = one.of_process or one.of_job or one.of_message
    return function.__module__.partition(".")[0] if function is not None else ""


def _guarded(one: Family, package: str, warnings: list[str]) -> Family:
    """The same, where each of its functions says nothing once it has failed."""

    def guarded(function: Any, otherwise: int | None) -> Any:
        @functools.wraps(function)
        def call(*given: Any) -> Any:
            try:
                return function(*given)
            except Exception as error:  # noqa: BLE001 - somebody else's code
                warning = f"families of {package}: {one.id}: {type(error).__name__}: {error}"
                if warning not in warnings:
                    warnings.append(warning)
                return None if otherwise is None else given[otherwise]

        return function and call

    return msgspec.structs.replace(
        one,
        of_process=guarded(one.of_process, None),
        of_job=guarded(one.of_job, None),
        of_message=guarded(one.of_message, 1),
    )
