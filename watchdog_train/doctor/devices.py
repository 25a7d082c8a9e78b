"""What the training's torch can do with a GPU here: MPS, and CUDA in a forked worker, by trying."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from watchdog_train.doctor import Check
from watchdog_train.doctor.ask import AskError, ask

WITHIN_S = 90.0
"""torch and a CUDA context from a cold disk."""
_TRY = """\
import json, os, sys
found = {}
try:
    import torch
except Exception:
    print(json.dumps(found)); sys.exit()
mps = getattr(torch.backends, "mps", None)
found["mps_built"] = bool(mps and mps.is_built())
found["mps"] = bool(mps and mps.is_available())
found["cuda"] = bool(torch.cuda.is_available())
if found["cuda"]:
    import multiprocessing
    found["start_method"] = multiprocessing.get_start_method()
    torch.zeros(1, device="cuda")
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:
            try:
                torch.zeros(1, device="cuda")
                os._exit(0)
            except BaseException:
                os._exit(3)
        found["fork_fails"] = os.waitpid(child, 0)[1] != 0
print(json.dumps(found))
"""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; without torch everything is as it is here."""

    mps_built: bool = False
    mps: bool = False
    cuda: bool = False
    start_method: str = ""
    fork_fails: bool = False


def devices(python: str, *, has_gpu: bool) -> Iterator[Check]:
    """Nothing where there is neither Apple silicon nor an NVIDIA GPU: loading torch takes seconds.

    Args:
        python: the interpreter of the training.
        has_gpu: an NVIDIA GPU is seen.
    """
    if not has_gpu and sys.platform != "darwin":
        return
    try:
        found = ask(python, _TRY, within_s=WITHIN_S, answer=Devices)
    except AskError as error:
        says = f"what torch can use is not known: {error}"
        yield Check(name="devices", status="unknown", says=says)
        return
    yield from judged(found, has_gpu=has_gpu, platform=sys.platform)


def judged(found: Devices, *, has_gpu: bool, platform: str) -> Iterator[Check]:
    """The answer in words."""
    if platform == "darwin":
        yield _mps(found)
    if has_gpu and not found.cuda:
        yield Check(
            name="CUDA",
            status="warning",
            says="a GPU is here, and the training's torch cannot use it",
            mend="nvidia-smi and `python -c 'import torch; print(torch.version.cuda)'` must agree",
        )
    if found.cuda and found.fork_fails:
        is_default = found.start_method == "fork"
        yield Check(
            name="fork after CUDA",
            status="ok",
            says="CUDA fails in a forked process, as everywhere"
            + (", and workers are forked by default" if is_default else ""),
            mend="a dataset that touches CUDA needs num_workers=0 or spawn: "
            "wtrain run --with num-workers-0"
            if is_default
            else None,
        )


def _mps(found: Devices) -> Check:
    if found.mps:
        says = "MPS is there; a hang before the first step is tried on the CPU (cpu-not-mps)"
        return Check(name="MPS", status="ok", says=says)
    why = "this macOS or machine has none" if found.mps_built else "this torch is built without it"
    return Check(
        name="MPS",
        status="warning",
        says=f"MPS cannot be used: {why}",
        mend="training runs on the CPU" if found.mps_built else "install the arm64 build of torch",
    )
