"""Entry points of other installed packages. Errors in their code never fail ours.

An import or a call that raises, or takes too long, costs one warning with the package's name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

CALL_S = 1.0
"""Time limit for importing a package's code, and for one call of it."""


class PluginError(Exception):
    """Code of another package raised, or did not return in time; the text says which."""


class Plugins:
    """Objects that installed packages add to one entry point group, and their failures."""

    def __init__(self, group: str, kind: str) -> None:
        self._group, self._kind = group, kind
        self.warnings: list[str] = []

    def load(self) -> Iterator[tuple[str, str, Any]]:
        """Package, module and object of each entry point that can be loaded."""
        try:
            from importlib import metadata  # takes milliseconds, so only if something is loaded

            entries = metadata.entry_points(group=self._group)
        except Exception as error:  # noqa: BLE001 - a collector that gave up its rights reads nothing
            self.warn("the installed packages", f"{type(error).__name__}: {error}")
            return
        for entry in entries:
            package = entry.dist.name if entry.dist is not None else entry.name
            try:
                yield package, entry.module, called(entry.load, CALL_S, "not loaded within 1 s")
            except PluginError as error:
                self.warn(package, error)

    def warn(self, package: str, problem: object) -> None:
        warning = f"{self._kind} of {package}: {problem}"
        if warning not in self.warnings:
            self.warnings.append(warning)


class Guard:
    """Calls the code of one package. After its first failure it is not called again."""

    def __init__(self, warn: Callable[[PluginError], None], total_s: float) -> None:
        self._warn, self._left_s = warn, total_s

    def ask(self, function: Callable[[], Any], more_s: float = 0.0) -> Any:
        """The result; None after a failure. `more_s` may be longer than the limit of one call."""
        if self._left_s <= 0:
            return None
        limit_s = max(min(CALL_S, self._left_s), more_s)
        began = time.monotonic()
        try:
            found = called(function, limit_s, f"not done within {limit_s:.0f} s")
        except PluginError as error:
            self._left_s = 0.0
            self._warn(error)
            return None
        self._left_s -= min(time.monotonic() - began, CALL_S)
        return found


def called(function: Callable[[], Any], limit_s: float, late: str) -> Any:
    """The result of a function of another package. A late one keeps its thread.

    PluginError: it raised, or was not done in time: then with the text `late`.
    """
    done: list[Any] = []
    problem = [late]

    def call() -> None:
        try:
            done.append(function())
        except BaseException as error:  # noqa: BLE001 - another package's code
            problem[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=call, daemon=True, name="plugin")
    thread.start()
    thread.join(limit_s)
    if not done:
        raise PluginError(problem[0])
    return done[0]
