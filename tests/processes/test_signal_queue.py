"""Signals wake a wait, and are taken once."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys

import pytest

from watchdog_train.supervisor.signals import SignalQueue

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nobody sends signals there")


def test_a_signal_ends_a_wait_and_is_taken_once() -> None:
    """What is waited on is a socket: select() on Windows takes nothing else."""
    before = signal.getsignal(signal.SIGUSR1)
    queue = SignalQueue()
    queue.install()
    try:
        assert stat.S_ISSOCK(os.fstat(queue.wakeup_fd).st_mode)
        assert select.select([queue.wakeup_fd], [], [], 0.0)[0] == []
        assert queue.take() == [], "taking never waits"
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        assert select.select([queue.wakeup_fd], [], [], 10.0)[0]
        assert queue.take() == [signal.SIGUSR1, signal.SIGUSR2]
        assert select.select([queue.wakeup_fd], [], [], 0.0)[0] == []
    finally:
        queue.restore()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_wake_of_a_thread_is_told_from_a_signal() -> None:
    queue = SignalQueue()
    queue.install()
    try:
        queue.wake()
        assert queue.only_woken()
        assert select.select([queue.wakeup_fd], [], [], 0.0)[0] == []
        queue.wake()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not queue.only_woken()
        assert queue.take() == [signal.SIGUSR1]
    finally:
        queue.restore()
