"""Windows: no signals are delivered there, so what a signal asks for is done by other means.

It must not pretend: SIGTERM would be a kill, so a soft end goes to the group as a Ctrl-Break.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import psutil

from watchdog_train.core.model import ProcessId
from watchdog_train.system.portable import REFUSED, PortableSystem
from watchdog_train.system.protocol import SignalResult

# The numbers that the rest of the house uses, as on Linux; Windows names only a few of them.
SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 9, 15, 18, 19


class WindowsSystem(PortableSystem):
    """What Windows can do; see ProcessSystem."""

    name = "windows"

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """Suspend, resume or end it; "denied" for every other signal."""
        if who.pid <= 4 or who.pid == os.getpid():
            return "not-ours"
        try:
            # psutil compares the creation time itself once more before it acts.
            process = psutil.Process(who.pid)
            if self.identity(who.pid) != who:
                return "not-ours"
            if signal_number in (SIGKILL, SIGTERM):
                process.kill()
            elif signal_number == SIGSTOP:
                process.suspend()
            elif signal_number == SIGCONT:
                process.resume()
            else:
                return "denied"
        except psutil.NoSuchProcess:
            return "gone"
        except REFUSED:
            return "denied"
        return "sent"

    def send_signal_to_group(self, leader: ProcessId, signal_number: int) -> SignalResult:
        """Ctrl-Break, the one thing that a Windows process group can be sent."""
        if self.identity(leader.pid) != leader:
            return "gone"
        if sys.platform == "win32" and signal_number not in (SIGKILL, SIGTERM):
            with suppress(OSError):
                os.kill(leader.pid, signal.CTRL_BREAK_EVENT)
                return "sent"
            return "denied"
        return self.send_signal(leader, signal_number)
