"""A training that no hook knows: only its output tells of progress. Hangs once, quietly.

Run as `python -I`, under `env -i`, or as it is; needs nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    steps, hang_at = int(sys.argv[1]), int(sys.argv[2])
    for step in range(steps):
        if step == hang_at and not os.path.exists("hung-once"):
            open("hung-once", "w").close()
            time.sleep(1e6)
        print(f"step {step}", flush=True)
        time.sleep(0.25)
    print(f"finished step={steps}", flush=True)


if __name__ == "__main__":
    main()
