"""What can be checked of Windows elsewhere."""

from __future__ import annotations

import os

from watchdog_train.core.model import ProcessId
from watchdog_train.system.windows import SIGINT, SIGTERM, WindowsSystem


def test_only_groups_of_ours_are_sent_a_break() -> None:
    """Windows may take the whole console for the group of another process."""
    system = WindowsSystem()
    stranger = ProcessId(2**22 + 1, 5)
    assert system.process_group(stranger.pid) is None
    assert system.send_signal_to_group(stranger, SIGINT) == "gone"
    me = system.identity(os.getpid())
    assert me is not None
    assert system.send_signal_to_group(me, SIGTERM) == "denied"
    system.expect_leader(me)
    assert system.process_group(me.pid) == me.pid
