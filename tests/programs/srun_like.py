"""Starts a command several times, as srun does on one node, and ends with the worst exit code.

srun_like.py N COMMAND...    pids of the tasks go to the file `tasks.pids`
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> int:
    tasks, command = int(sys.argv[1]), sys.argv[2:]
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
    }
    children = []
    for number in range(tasks):
        mine = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        with open(f"task-{number}.out", "wb") as out, open(f"task-{number}.err", "wb") as err:
            children.append(
                subprocess.Popen(
                    command, env={**os.environ, **step, **mine}, stdout=out, stderr=err
                )
            )
    with open("tasks.pids.new", "w") as file:
        file.write(" ".join(str(child.pid) for child in children))
    os.replace("tasks.pids.new", "tasks.pids")

    def forward(number: int, _frame: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    codes = [child.wait() for child in children]
    print(codes, flush=True)
    return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == "__main__":
    sys.exit(main())
