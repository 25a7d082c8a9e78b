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

from watchdog_train.doctor import Check

LIMIT_S = 20.0
"""From the start of the processes; a cold import of torch takes a few seconds of it."""
MOST_RANKS = 64
DEFAULT_PORT = 29500
"""Of torchrun and of torch.distributed."""
WORDS = 300
_RANK = """\
import datetime, os, sys
import torch
import torch.distributed as dist
print("loaded", file=sys.stderr, flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
value = torch.ones(8)
dist.all_reduce(value)
world = dist.get_world_size()
dist.destroy_process_group()
sys.exit(0 if bool((value == world).all()) else 9)
"""


def all_reduce(python: str, ranks: int, limit_s: float = LIMIT_S) -> Check:
    """Start them, wait for them together, end whoever is left.

    Args:
        python: the interpreter of the training.
        ranks: how many, from 2 to MOST_RANKS.
        limit_s: for all of them.
    """
    name = f"all-reduce of {ranks} ranks"
    began = time.monotonic()
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="wtrain-") as folder:
        try:
            port = _free_port()
            for rank in range(ranks):
                with (Path(folder) / f"{rank}").open("wb") as words:
                    started.append(
                        subprocess.Popen(
                            [python, "-c", _RANK],
                            env=_environment(rank, ranks, port),
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL,
                            stderr=words,
                        )
                    )
            codes = _wait(started, began + limit_s)
        except OSError as error:
            says = f"it could not be started: {error.strerror}"
            return Check(name=name, status="failure", says=says, mend="name it with --python")
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
        if all(code == 0 for code in codes):
            says = f"gloo agrees within {time.monotonic() - began:.1f} s"
            return Check(name=name, status="ok", says=says)
        bad = next((rank for rank, code in enumerate(codes) if code), None)
        if bad is None:
            told = [(Path(folder) / f"{rank}").read_bytes()[:4096] for rank in range(ranks)]
            if not all(b"loaded" in each for each in told):
                # A machine that is busy with something else, and no fault of the network.
                says = f"torch was not loaded within {limit_s:.0f} s, so nothing was tried"
                mend = "try again when the machine has less to do"
                return Check(name=name, status="unknown", says=says, mend=mend)
            late = [rank for rank, code in enumerate(codes) if code is None]
            says = f"{len(late)} of {ranks} ranks had not ended after {limit_s:.0f} s"
            mend = "GLOO_SOCKET_IFNAME=lo tries the loopback; a firewall may drop what they send"
            return Check(name=name, status="failure", says=says, mend=mend)
        text = (Path(folder) / f"{bad}").read_bytes()[-4096:].decode("utf-8", "replace")
        last = text.strip().splitlines()[-1:] or [f"exit code {codes[bad]}"]
        mend = "the same interpreter must have torch with torch.distributed: --python"
        says = f"rank {bad} failed: {last[0][:WORDS]}"
        return Check(name=name, status="failure", says=says, mend=mend)


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


def _wait(started: list[subprocess.Popen[bytes]], until: float) -> list[int | None]:
    """The codes; the first failure ends the waiting, because the others would only time out."""
    while time.monotonic() < until:
        codes = [process.poll() for process in started]
        if all(code is not None for code in codes) or any(codes):
            return codes
        time.sleep(0.05)
    return [process.poll() for process in started]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    with socket.socket() as found:
        if sys.platform != "win32":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
