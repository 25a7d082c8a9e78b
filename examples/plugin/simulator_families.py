"""Causes of hangs that only this team knows, for wtrain. See docs/plugins.md."""

from __future__ import annotations

from watchdog_train.explain.cause import Cause, family, likely
from watchdog_train.explain.scene import Captured, Scene


@family("simulator-licence", kind="hang", of=("tcp", "sleep"), remedies=("none-user-fix",))
def waits_for_a_licence(_: Scene, process: Captured) -> Cause | None:
    """The simulator waits for a free licence. Ask who holds one: `simlic status`."""
    waits = process.stack.passes("Simulator.__init__|start (simulator/*)", "checkout|_poll_server")
    return likely() if waits else None
