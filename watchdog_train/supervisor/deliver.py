"""Sends the signals of one stage of a kill sequence, each to a verified identity."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Iterator, Mapping

import msgspec

from watchdog_train.core.actions import Signal
from watchdog_train.core.events import Signalled
from watchdog_train.core.model import ProcessId, Role
from watchdog_train.core.recovery.kill import SIGKILL
from watchdog_train.system.protocol import ProcessSystem, SignalResult


def deliver(
    action: Signal,
    roles: Mapping[ProcessId, Role],
    system: ProcessSystem,
    end_group: Callable[[], bool] = lambda: False,
) -> Iterator[Signalled]:
    """One event for each target, when it has had its signal.

    Of a group signal those who are outside of the groups get their own. What a shell starts in its
    background ignores Ctrl-C, and gets SIGTERM instead.

    Args:
        action: whom, and what with.
        roles: of the targets, for the record.
        system: sends.
        end_group: ends all of the attempt at once, where the system can; whether it did. The last
            resort, for what may not be ended one by one.
    """
    groups = {one: system.process_group(one.pid) for one in action.targets if action.group}
    # Before the first signal: a script may ignore the second one while it acts on the first.
    deaf = {
        one
        for one, group in groups.items()
        if group != one.pid and system.ignores_signal(one.pid, action.signal)
    }
    results: dict[int, SignalResult] = {}
    denied: list[Signalled] = []
    for target in action.targets:
        group = groups.get(target)
        number = signals.SIGTERM if target in deaf else action.signal
        if target in groups and group in (target.pid, None):
            result = results[target.pid] = system.send_signal_to_group(target, number)
        elif group in results and target not in deaf:
            result = results[group]
        else:
            if number == signals.SIGTERM and hasattr(signals, "SIGCONT"):
                # A stopped process does not act on SIGTERM.
                system.send_signal(target, signals.SIGCONT)
            result = system.send_signal(target, number)
        told = Signalled(
            pid=target.pid,
            start=target.start,
            signal=number,
            role=roles.get(target, "other"),
            result=result,
        )
        yield told
        if result == "denied":
            denied.append(told)
    if denied and action.stage == "launchers" and action.signal == SIGKILL and end_group():
        for told in denied:
            yield msgspec.structs.replace(told, result="sent")
