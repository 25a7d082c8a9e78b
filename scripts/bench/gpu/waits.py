"""A training on a GPU, with one thing in it that never ends: what the parts start and look at.

    python waits.py KIND

It makes the file ready-RANK when the GPU is at work. Without a device it rehearses on the CPU: gloo
stands for NCCL, an event that nobody sets for a kernel that does not end.
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
DEVICE = torch.device("cuda" if CUDA else "cpu")
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
SCHEDULES = {"spin": 1, "yield": 2, "blocking": 4}
"""cudaDeviceScheduleSpin, Yield, BlockingSync of driver_types.h."""
HANG_AT = 60
HANG_AFTER_S = 20.0
"""Of full work before `endless` hangs: so long it takes to know what its own steps draw."""
FOR_S = float(os.environ.get("GPU_SECONDS", "600"))


def never_ends() -> None:
    """Kernels of some minutes, in pieces of about a second (2 GHz at most)."""
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
    maps = Path("/proc/self/maps").read_text().splitlines()
    runtime = next((line.split()[-1] for line in maps if "libcudart.so" in line), None)
    if runtime is None:
        raise SystemExit("torch has no libcudart.so of its own")
    code = ctypes.CDLL(runtime).cudaSetDeviceFlags(SCHEDULES[name])
    if code:
        raise SystemExit(f"cudaSetDeviceFlags returned {code}")


def ready() -> None:
    """It is where it will stay; written at once, so that no reader sees half of it."""
    new = Path(f"ready-{RANK}.new")
    new.write_text(str(os.getpid()))
    new.rename(f"ready-{RANK}")


def hold() -> None:
    """8 GiB, and a wait for kernels that run."""
    held = torch.empty(8 << 30 if CUDA else 1, dtype=torch.uint8, device=DEVICE)
    never_ends()
    ready()
    finish()
    del held


def model_of(width: int) -> torch.nn.Module:
    """Eight layers."""
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(DEVICE)


def train(kind: str) -> None:
    """Steps on real kernels; a healthy training saves and evaluates, too."""
    healthy, endless = kind == "healthy", kind == "endless"
    width, batch = ((4096, 4096) if healthy or endless else (1024, 256)) if CUDA else (32, 8)
    model = model_of(width)
    optimizer = torch.optim.AdamW(model.parameters())
    net: Any = model
    if kind == "compile":
        how = {"mode": "max-autotune"} if CUDA else {"backend": "eager"}
        net = torch.compile(model, **how)
    fails = FAILS.get(kind) if not Path("ready-0").exists() else None
    began = time.monotonic()
    until = began + FOR_S
    step = 0
    while time.monotonic() < until:
        loss = net(torch.randn(batch, width, device=DEVICE)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        step += 1
        due = time.monotonic() - began > HANG_AFTER_S if endless else step == HANG_AT
        if due and fails is not None:
            fails(loss)
        optimizer.step()
        loss.item()
        if kind == "bound":
            prepare(25.0 if step % 8 == 7 else 1.0)
        elif not ((healthy or endless) and CUDA):
            time.sleep(0.05)
        if healthy and step % 400 == 0:
            torch.save(model.state_dict(), "checkpoint.pt")
        if healthy and step % 800 == 0:
            evaluate(net, batch, width)


def prepare(seconds: float) -> int:
    """The next batch, in Python: a core is busy and the GPU idle."""
    until, total = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        total += 1
    return total


def evaluate(net: Any, batch: int, width: int) -> None:
    """Some seconds without a step."""
    with torch.no_grad():
        for _ in range(200):
            net(torch.randn(batch, width, device=DEVICE)).sum().item()


def cost() -> None:
    """Seconds of one step of small kernels, the first ones aside."""
    model = model_of(1024 if CUDA else 32)
    optimizer = torch.optim.AdamW(model.parameters())
    steps, began = (3000, 300) if CUDA else (60, 6), 0.0
    for step in range(sum(steps)):
        if step == steps[1]:
            began = time.perf_counter()
        optimizer.zero_grad()
        model(torch.randn(256, model[0].in_features, device=DEVICE)).sum().backward()
        optimizer.step()
    if CUDA:
        torch.cuda.synchronize()
    Path("seconds").write_text(str((time.perf_counter() - began) / steps[0]))


def item(loss: Any) -> None:
    """`loss.item()` behind a kernel that does not end."""
    never_ends()
    ready()
    if not CUDA:
        finish()
    loss.item()


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


class OnTheDevice(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Its workers use the GPU that the main process has used."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4, device=DEVICE) * index


def forked(_loss: Any) -> None:
    """Every second run of it passes: workers in the process may use the GPU."""
    for _ in torch.utils.data.DataLoader(OnTheDevice(), num_workers=2):
        pass


def full(_loss: Any) -> None:
    """More memory than any device has."""
    torch.empty(400 << 30, dtype=torch.uint8, device=DEVICE)


def assertion(_loss: Any) -> None:
    """A label that no class has."""
    torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=DEVICE), torch.tensor([0, 7], device=DEVICE)
    ).item()


FAILS = {
    "item": item,
    "endless": item,
    "loader": loader,
    "forked": forked,
    "full": full,
    "assertion": assertion,
}


def collective(backend: str, kind: str) -> None:
    """Ranks of which the last does not come, dies, or comes with another shape."""
    import torch.distributed as dist

    device = DEVICE
    if CUDA:
        device = torch.device("cuda", RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend if CUDA else "gloo")
    for _ in range(20):
        ones = torch.ones(1 << 16, device=device)
        dist.all_reduce(ones)
    ones.sum().item()
    ready()
    last = RANK == WORLD - 1
    if last and kind == "dead":
        os._exit(9)
    while last and kind == "loops":
        pass
    ones = torch.ones(1 << (17 if last and kind == "mismatch" else 16), device=device)
    dist.all_reduce(ones)
    ones.sum().item()
    print("came through", flush=True)


def main() -> None:
    kind = sys.argv[1]
    if not CUDA:
        torch.set_num_threads(1)
    backend, _, what = kind.partition("-")
    if what:
        collective(backend, what)
    elif kind == "cost":
        cost()
    elif kind == "holds" or kind in SCHEDULES:
        if kind in SCHEDULES:
            schedule(kind)
        hold()
    else:
        train(kind)


if __name__ == "__main__":
    main()
