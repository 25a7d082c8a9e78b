"""What the scripts share that start whole runs: a clean environment, and an end in any case."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path


def environment(place: Path) -> dict[str, str]:
    """Nothing of an outer run, one thread a rank, and state that goes with the place."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WTRAIN_", "PET_"))}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "XDG_STATE_HOME": str(place / ".state"),
        "XDG_CONFIG_HOME": str(place / ".config"),
    }


def ended(
    command: list[str], cwd: Path, env: dict[str, str], limit_s: float
) -> tuple[int | None, str]:
    """Exit code and output of a command; None, and its own group killed, after the limit."""
    log = cwd / "said.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGTERM)  # torchrun ends its ranks, wtrain its run
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, log.read_text("utf-8", "replace")
