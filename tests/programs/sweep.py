"""One of several trainings of a sweep, each in a world of its own; number 5 crashes once."""

from __future__ import annotations

import os
import sys
import time

os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
number, attempt = os.environ["SLURM_PROCID"], os.environ["WTRAIN_ATTEMPT"]
print(f"task {number} attempt {attempt}", flush=True)
time.sleep(1.0)
sys.exit("no luck" if (number, attempt) == ("5", "1") else 0)
