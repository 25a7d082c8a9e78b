"""wtrain with shorter limits of a wait for GPUs: `short_limits.py LEAST_S EVERY_S run ...`."""

from __future__ import annotations

import sys

from watchdog_train.core.detection import device_history

if __name__ == "__main__":
    least_s, every_s = map(float, sys.argv[1:3])
    device_history.LIMITS = device_history.DeviceLimits(
        least_s=least_s, seldom_least_s=2 * least_s, every_s=every_s
    )
    from watchdog_train.cli.main import main

    sys.argv[1:3] = []
    main()
