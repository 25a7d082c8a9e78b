"""wtrain with shorter limits: `short_limits.py LEAST_S EVERY_S FLOOR_S run ...`.

A stall of GPUs after LEAST_S, a stack sample every EVERY_S, and a busy job that has learnt the
length of its steps is suspected after FLOOR_S.
"""

from __future__ import annotations

import sys

from watchdog_train.cli.main import main
from watchdog_train.core.policy import Detection, Limits
from watchdog_train.core.policy.limits import DeviceWaits

if __name__ == "__main__":
    least_s, every_s, floor_s = map(float, sys.argv[1:4])
    devices = DeviceWaits(least_s=least_s, seldom_least_s=2 * least_s, every_s=every_s)
    sys.argv[1:4] = []
    main(Limits(detection=Detection(learnt_hard_floor_s=floor_s, devices=devices)))
