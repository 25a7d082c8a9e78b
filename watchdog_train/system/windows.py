"""Windows: no signals are delivered there, so what a signal asks for is done by other means.

It must not pretend: nothing but a Ctrl-Break to a whole group is a soft end, and only a group that
we have made ourselves is sent one. For the pid of another process on the same console Windows may
take the whole console for the group, and that would end the user's shell.

Nobody has run this on Windows.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil

from watchdog_train.core.model import ProcessId
from watchdog_train.system.portable import REFUSED, PortableSystem
from watchdog_train.system.protocol import SignalResult

# The numbers that the rest of the house uses, as on Linux; Windows names only a few of them.
SIGINT, SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 2, 9, 15, 18, 19
SAID_S = 5.0
"""A group that hears a second Ctrl-Break while it acts on the first may end at once."""
MOST_LEADERS = 64
"""Of the 260 that a name may have."""


class WindowsSystem(PortableSystem):
    """What Windows can do; see ProcessSystem."""

    name = "windows"

    def __init__(self) -> None:
        super().__init__()
        self._leaders: dict[ProcessId, float] = {}
        """Groups of ours, and when they were last sent a Ctrl-Break."""

    def expect_leader(self, who: ProcessId) -> None:
        """Remember a group: Windows does not say which processes lead one."""
        if who not in self._leaders:
            while len(self._leaders) >= MOST_LEADERS:
                del self._leaders[next(iter(self._leaders))]
            self._leaders[who] = float("-inf")

    def process_group(self, pid: int) -> int | None:
        """Its leader's pid, for a leader that we know; else unknown."""
        return next((who.pid for who in self._leaders if who.pid == pid), None)

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """Suspend, resume or end it; a Ctrl-Break for a soft end, where there is a way for it."""
        if who.pid <= 4 or who.pid == os.getpid():
            return "not-ours"
        try:
            # psutil compares the creation time itself once more before it acts.
            process = psutil.Process(who.pid)
            if self.identity(who.pid) != who:
                return "not-ours"
            if signal_number in (SIGINT, SIGTERM):
                leader = self._leader_above(process)
                if leader is not None and self._ctrl_break(leader):
                    return "sent"
                if signal_number == SIGINT:
                    return "denied"
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
        """Ctrl-Break, the one thing that a Windows process group can be sent, or the end of it."""
        if self.identity(leader.pid) != leader:
            return "gone"
        if leader not in self._leaders:
            return "denied"
        if signal_number in (SIGINT, SIGTERM):
            return "sent" if self._ctrl_break(leader) else self.send_signal(leader, signal_number)
        return self.send_signal(leader, signal_number)

    def _leader_above(self, process: psutil.Process) -> ProcessId | None:
        """The group of ours that it is in, by its living parents; psutil checks their age."""
        for each in (process, *process.parents()):
            who = self.identity(each.pid)
            if who in self._leaders:
                return who
        return None

    def _ctrl_break(self, leader: ProcessId) -> bool:
        """Whether the group has heard it, now or a moment ago."""
        now = time.monotonic()
        if now - self._leaders[leader] < SAID_S:
            return True
        if sys.platform == "win32":
            try:
                os.kill(leader.pid, signal.CTRL_BREAK_EVENT)
            except OSError:  # no console is shared with it
                return False
            self._leaders[leader] = now
            return True
        return False
