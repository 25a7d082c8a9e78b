"""`--ranks N`: a tiny all-reduce by the training's own interpreter, over gloo, with a deadline.

What fails here fails at the first collective of the night, after everything has been loaded.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from watchdog_train.doctor import Check, Status

LIMIT_S = 20.0
"""From when every rank has loaded torch."""
LOAD_S = 60.0
"""To load torch: a few seconds, but all ranks read it at once, and from a cold disk."""
MOST_RANKS = 64
BUSY_LOAD = 2.0
"""Of one minute, for each core; the ranks themselves are a part of it for some seconds only."""
DEFAULT_PORT = 29500
"""Of torchrun and of torch.distributed."""
WORDS = 300
_ALONE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
_RANK = """\
import datetime, os, sys
import torch
import torch.distributed as dist
print("loaded", file=sys.stderr, flush=True)
rank, world, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.FileStore(meeting, world)
limit = datetime.timedelta(seconds=20)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
value = torch.ones(8)
dist.all_reduce(value)
dist.destroy_process_group()
sys.exit(0 if bool((value == world).all()) else 9)
"""


def all_reduce(python: str, ranks: int, limit_s: float = LIMIT_S, load_s: float = LOAD_S) -> Check:
    """Start so many ranks, wait for them together, end whoever is left.

    Args:
        python: the interpreter of the training.
        ranks: how many, from 2 to MOST_RANKS.
        limit_s: for all of them, once torch is loaded.
        load_s: for that.
    """
    name = f"all-reduce of {ranks} ranks"
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="wtrain-") as folder:
        said = [Path(folder) / f"{rank}" for rank in range(ranks)]
        try:
            for rank, path in enumerate(said):
                argv = [python, "-c", _RANK, str(rank), str(ranks), f"{folder}/meeting"]
                env = {**os.environ, **_ALONE}
                with path.open("wb") as words:
                    started.append(
                        subprocess.Popen(
                            argv, env=env, stdin=subprocess.DEVNULL, stdout=words, stderr=words
                        )
                    )
            status, says, mend = _wait(started, said, limit_s, load_s)
        except OSError as error:
            status, mend = "failure", "name it with --python"
            says = f"it could not be started: {error.strerror}"
        finally:
            for process in started:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
    return Check(name=name, status=status, says=says, mend=mend)


def _wait(
    started: list[subprocess.Popen[bytes]], said: list[Path], limit_s: float, load_s: float
) -> tuple[Status, str, str | None]:
    """What came of them; the first failure ends the waiting: the others would only time out."""
    until, loaded_at = time.monotonic() + load_s, None
    while (now := time.monotonic()) < until:
        if loaded_at is None and all(b"loaded" in _begin(path) for path in said):
            loaded_at, until = now, now + limit_s
        codes = [process.poll() for process in started]
        bad = next((rank for rank, code in enumerate(codes) if code), None)
        if bad is not None:
            text = said[bad].read_bytes()[-4096:].decode("utf-8", "replace")
            last = text.strip().splitlines()[-1:] or [f"exit code {codes[bad]}"]
            mend = "the same interpreter must have torch with torch.distributed: --python"
            return "failure", f"rank {bad} failed: {last[0][:WORDS]}", mend
        if None not in codes:
            agreed_s = now - (now if loaded_at is None else loaded_at)
            return "ok", f"gloo agrees within {agreed_s:.1f} s of loading torch", None
        time.sleep(0.05)
    # A machine that is busy with something else is no fault of the network.
    mend = "try again when the machine has less to do"
    if loaded_at is None:
        return "unknown", f"torch was not loaded within {load_s:.0f} s, so nothing was tried", mend
    late = sum(process.poll() is None for process in started)
    says = f"{late} of {len(started)} ranks had not ended after {limit_s:.0f} s"
    if _is_busy():
        says += ", on a machine with much more to do than it can: that proves nothing"
        return "unknown", says, mend
    mend = "GLOO_SOCKET_IFNAME=lo tries the loopback; a firewall may drop what they send"
    return "failure", says, mend


def _is_busy() -> bool:
    """Whether so much waits for a CPU that a healthy rank may be late for no fault of its own."""
    if sys.platform == "win32":
        return False
    return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)


def meeting_port() -> Check:
    """Where ranks meet unless they are told otherwise; taken, a second training joins the first."""
    name = f"port {DEFAULT_PORT}"
    with socket.socket() as tried:
        try:
            tried.bind(("", DEFAULT_PORT))
        except OSError as error:
            mend = (
                "--standalone of torchrun, or another MASTER_PORT: two trainings would meet there"
            )
            says = f"torch's usual meeting place is taken: {error.strerror}"
            return Check(name=name, status="warning", says=says, mend=mend)
    return Check(name=name, status="ok", says="torch's usual meeting place is free")


def _begin(path: Path) -> bytes:
    with path.open("rb") as words:
        return words.read(4096)
