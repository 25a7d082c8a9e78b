"""Chooses what stands for the operating system; nothing else in the house asks which one it is."""

from __future__ import annotations

import os
import sys

from watchdog_train.system.protocol import ProcessSystem


def current() -> ProcessSystem:
    """The system of this machine; WTRAIN_SYSTEM=portable limits it to what psutil can do."""
    if sys.platform == "linux" and os.environ.get("WTRAIN_SYSTEM") != "portable":
        from watchdog_train.system.linux import LinuxSystem

        return LinuxSystem()
    from watchdog_train.system.portable import PortableSystem

    return PortableSystem()
