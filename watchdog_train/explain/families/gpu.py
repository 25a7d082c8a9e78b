"""Devices and their drivers."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import ANY, Cause, declare, family, likely, possible, proven
from watchdog_train.explain.scene import Captured, Scene

_IN_DRIVER = r"nvidia|nv_|nvkms|uvm|os_acquire|os_semaphore|rm_|_nv\d|amdgpu|kfd|amdkfd"
_ONLY_DRIVER = r"os_acquire_(?:rwlock|semaphore|mutex)|uvm_\w+|nvidia_\w+|_nv0\w+|amdgpu_\w+"
_METAL = (
    "*waitUntilCompleted*|*waitUntilScheduled*|*MTLCommandBuffer*|*MTLCommandQueue*|*IOGPUMetal*"
)
_MPS = (
    "*at::mps*|*MPSStream*|*MPSAllocator*|*MPSEvent*|*MPSHeap*|*MetalPerformanceShaders*|"
    "*MPSGraph* || * (*MetalPerformance*|*MPSGraph*|*MPSCore*|AGXMetal*|Metal)"
)
_MPS_WAITS = (
    "*MPSStream::synchronize*|*psynch*|*semaphore_*|*cond_wait*|*cvwait*|*kevent*|*mach_msg*|"
    "*synchronize*|*wait*|*lock*|*mutex*"
)
_MPS_PYTHON = "synchronize|wait|elapsed_time|query|empty_cache|_maybe_synchronize (torch/mps/*)"
_DRIVER_CALLS = (
    f"{sets.NATIVE_SYNCHRONISES} || cuMemcpy*|*CtxSynchronize*|*cudaFree* || "
    "* (libcuda.so*|libcudart*)"
)
_PYTHON_WAITS = (
    "synchronize|wait_stream|wait_event|query (torch/cuda/*|torch/xpu/*|torch/accelerator/*)"
)
_COPIES = "broadcast_coalesced|scatter|gather|reduce_add_coalesced (torch/nn/parallel/comm.py)"
_FOR_RANKS = f"{sets.COLLECTIVE} || _communicate|_p2p_ops|_batched_p2p_ops (megatron/*|apex/*)"


@family("gpu-fault", "NVIDIA/open-gpu-kernel-modules#1150", kind="hang", of=(ANY,),
        remedies=("other-node",))  # fmt: skip
def driver(_: Scene, process: Captured) -> Cause | None:
    """The GPU or its driver has failed."""
    blocked = process.is_uninterruptible and process.in_kernel(_IN_DRIVER)
    if blocked or process.in_kernel(_ONLY_DRIVER):
        return likely("{who} hangs in the GPU driver and cannot be killed.")
    return None


_gpu_memory = declare(
    "cuda-oom", "modelscope/FunASR#2006", kind="crash", says="The GPU had no memory left.",
    remedies=("allocator-expandable", "batch-halve-accumulate"),
)  # fmt: skip


@_gpu_memory.message
def _is_shared(scene: Scene, cause: Cause) -> Cause:
    if not scene.host.gpu_others:
        return cause
    return proven(
        "The GPU had no memory left, and somebody else holds memory there: {others}. It is not "
        "this training alone.",
        remedies=("plain-retry", "batch-halve-accumulate"), kind="crash",
    )  # fmt: skip


@family("mps-hang", "pytorch/pytorch#141296", kind="hang",
        remedies=("cpu-not-mps", "upgrade-library"))  # fmt: skip
def mac_gpu(scene: Scene, process: Captured) -> Cause | None:
    """The GPU of the Mac does not finish its work."""
    native = process.any_passes(_METAL) or process.any_passes(_MPS, _MPS_WAITS)
    waits = process.stack.inner(_MPS_PYTHON, depth=3) and not scene.any_changed
    return likely() if native or waits else None


@family("cuda-sync", kind="hang", remedies=("launch-blocking", "nccl-p2p-off", "other-node"))
def device_does_not_finish(scene: Scene, process: Captured) -> Cause | None:
    """The GPU does not finish its work. If all ranks wait so, look at the transport."""
    stack = process.stack
    if process.role == "rank" and stack.inner(_COPIES, depth=2):
        return possible("The GPUs do not copy to each other: {who} stands at {frame}.")
    if not process.trains or scene.any_changed or scene.standing not in ("alone", "same", "none"):
        return None
    native = stack.passes(_DRIVER_CALLS) and stack.avoids("*ncclComm*|*NCCLComm*|*~ProcessGroup*")
    if native and scene.standing != "none":
        return likely()
    if stack.inner(_PYTHON_WAITS, depth=2) and stack.avoids(_FOR_RANKS):
        return possible() if process.running or scene.standing == "none" else likely()
    waits = any(one.inner(sets.NATIVE_SYNCHRONISES) for one in process.working)
    return possible() if waits else None
