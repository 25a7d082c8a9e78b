"""Explicit calls for a loop over accelerate's Accelerator; outside `wtrain run` they only count.

The hook sees such a loop's steps and saves by itself. What it cannot do is to resume, to save and
to stop on request, and to know how many steps there will be: this class does.
"""

from watchdog_train.client.hooks.accelerate import WatchdogLoop

__all__ = ["WatchdogLoop"]
