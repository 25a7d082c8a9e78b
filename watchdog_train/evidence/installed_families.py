"""Families of causes, of wtrain and other packages, loaded once the evidence is on disk.

A package names a module in the entry point group `watchdog_train.families`; importing it declares
its families.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from watchdog_train.explain.cause import REGISTERED, Family
from watchdog_train.explain.families import known_families
from watchdog_train.plugins import Plugins

GROUP = "watchdog_train.families"


def all_families() -> tuple[tuple[Family, ...], list[str]]:
    """Families of wtrain and other packages; and the warnings, to which a failing one adds."""
    plugins = Plugins(GROUP, "families")
    families = [*known_families()]
    for package, module, _ in plugins.load():
        added = [one for one in REGISTERED.values() if _top(one) == module.partition(".")[0]]
        families += [_guarded(one, package, plugins) for one in added]
    return tuple(families), plugins.warnings


def _top(one: Family) -> str:
    """The top-level module that declared it; empty: it has no function."""
    function = one.of_process or one.of_job or one.of_message
    return function.__module__.partition(".")[0] if function is not None else ""


def _guarded(one: Family, package: str, plugins: Plugins) -> Family:
    """The same family; a call that raises adds a warning and counts as no answer."""

    def guarded(function: Any, otherwise: int | None) -> Any:
        @functools.wraps(function)
        def call(*given: Any) -> Any:
            try:
                return function(*given)
            except Exception as error:  # noqa: BLE001 - another package's code
                plugins.warn(package, f"{one.id}: {type(error).__name__}: {error}")
                return None if otherwise is None else given[otherwise]

        return function and call

    return msgspec.structs.replace(
        one,
        of_process=guarded(one.of_process, None),
        of_job=guarded(one.of_job, None),
        of_message=guarded(one.of_message, 1),
    )
