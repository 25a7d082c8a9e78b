"""A training on a GPU, with one thing in it that never ends: what the parts start and look at.

    python waits.py KIND [RESUME]

It makes the file ready-RANK when the GPU is at work. Without a device it rehearses on the CPU: what
waits for a kernel waits for nothing then.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

CUDA = torch.cuda.is_available()
WIDTH = 1024 if CUDA else 32
RANK = int(os.environ.get("RANK", "0"))
SCHEDULES = {"spin": 1, "yield": 2, "blocking": 4}
"""cudaDeviceScheduleSpin, Yield, BlockingSync."""
STEPS = int(os.environ.get("GPU_STEPS", "1200"))


def never_ends() -> None:
    """A kernel of some minutes: about 10^9 cycles a second, in pieces as large as one may be."""
    for _ in range(400 if CUDA else 0):
        torch.cuda._sleep(2_000_000_000)  # noqa: SLF001 - no other kernel comes with torch


def finish() -> None:
    """Wait for the device."""
    if CUDA:
        torch.cuda.synchronize()
    else:
        threading.Event().wait()


def schedule(name: str) -> None:
    """How the host waits for the device; before torch makes the context."""
    if not CUDA:
        return
    runtime = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()
        if "libcudart" in line
    )  # fmt: skip
    code = ctypes.CDLL(runtime).cudaSetDeviceFlags(SCHEDULES[name])
    if code:
        raise SystemExit(f"cudaSetDeviceFlags said {code}")


def ready() -> None:
    Path(f"ready-{RANK}").write_text(str(os.getpid()))


def train(
    device: Any, hang_at: int, act: Any, *, slow_s: float = 0.1, compiled: bool = False
) -> None:
    """Steps on real kernels, a save each hundredth, an evaluation each two hundredth."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(device)
    if compiled:
        model = torch.compile(model, mode="max-autotune")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        loss = model(torch.randn(256, WIDTH, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == hang_at:
            act(loss)
        optimizer.step()
        loss.item()
        time.sleep(slow_s)
        if step % 100 == 99:
            torch.save(model.state_dict(), f"step-{step:04d}.pt")
        if step % 200 == 199:
            with torch.no_grad():
                for _ in range(50):
                    model(torch.randn(256, WIDTH, device=device)).sum().item()


def item(loss: Any) -> None:
    """`loss.item()` behind a kernel that does not end."""
    never_ends()
    ready()
    if not CUDA:
        finish()
    loss.item()


def collective(kind: str, *, backend: str) -> None:
    """Two ranks, of which the second does not come, dies, or comes with another shape."""
    import torch.distributed as dist

    device = torch.device("cpu")
    if CUDA:
        device = torch.device("cuda", RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    for _ in range(20):
        ones = torch.ones(1 << 16, device=device)
        dist.all_reduce(ones)
    ones.sum().item()
    ready()
    if RANK == 1 and kind == "dead":
        os._exit(9)
    while RANK == 1 and kind == "loops":
        pass
    size = 1 << (17 if RANK == 1 and kind == "mismatch" else 16)
    ones = torch.ones(size, device=device)
    dist.all_reduce(ones)
    ones.sum().item()
    print("came through", flush=True)


class Stuck(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Its workers wait for a lock that was held when they were forked."""

    lock = threading.Lock()

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return index


def loader(_loss: Any) -> None:
    """DataLoader workers in a deadlock while the GPU is busy with other work."""
    Stuck.lock.acquire()
    never_ends()
    ready()
    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=2, multiprocessing_context="fork")))


def main() -> None:
    kind = sys.argv[1]
    if not CUDA:
        torch.set_num_threads(1)
    if kind in SCHEDULES:
        schedule(kind)
    if kind.startswith(("nccl-", "gloo-")):
        backend, _, what = kind.partition("-")
        collective(what, backend=backend)
        return
    device = torch.device("cuda" if CUDA else "cpu")
    if kind == "holds" or kind in SCHEDULES:
        size = 8 << 30 if CUDA and kind == "holds" else 1
        held = torch.empty(size, dtype=torch.uint8, device=device)
        never_ends()
        ready()
        finish()
        del held
    elif kind in ("healthy", "compile", "cost"):
        began = time.monotonic()
        train(device, -1, None, slow_s=0.0 if kind == "cost" else 0.05, compiled=kind == "compile")
        Path("seconds").write_text(str(time.monotonic() - began))
    else:
        first = not os.path.exists("ready-0")
        train(device, 100 if first else -1, {"item": item, "loader": loader}[kind])


if __name__ == "__main__":
    main()
