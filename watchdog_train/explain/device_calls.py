"""The native call in which a thread waits for its device, and the Python call that led there."""

from __future__ import annotations

import re
from itertools import takewhile

from watchdog_train.core.diagnosis.stacks import ThreadStack, frame_matches, own_frames

LAUNCH = "cudaLaunch*|cuLaunch*|hipLaunch*|hipModuleLaunch*"
"""Blocked where the queue of kernels is full."""
_WAITS = (
    "cuda*Synchronize*|cu*Synchronize*|hip*Synchronize*|cudaMemcpy*|cuMemcpy*|hipMemcpy*|"
    f"*memcpy_and_sync*|*_local_scalar_dense_cuda*|{LAUNCH}"
)
_BEGINS = (
    "*ModuleLoad*|*LibraryLoad*|cuLink*|nvrtc*|cuInit|*CtxCreate*|*PrimaryCtx*|*CommInit*|"
    "*cudnnCreate|*cublasCreate*|*lazy_init*|compile_fx*|_compile_inner|*autotun*|do_bench*|"
    "benchmark*"
)
"""Loads, compiles, initialises or measures kernels: slow, and no wait for a collective."""
_LINE = re.compile(r"[\w.\[\]]+\.(?:item|cpu|tolist|numpy|nonzero|synchronize|any|all|to)\(")


def device_call(thread: ThreadStack | None) -> str | None:
    """`cudaStreamSynchronize`; None: it waits for no device, or native frames are not known."""
    frames = thread.frames if thread is not None else ()
    native = takewhile(lambda frame: frame.native, frames)
    found = next((frame.name for frame in native if frame_matches(_WAITS, frame)), None)
    begins = any(frame_matches(_BEGINS, frame) for frame in frames)
    return None if begins else found


def called_by(thread: ThreadStack | None) -> str:
    """`loss.item()`, by the text of the innermost Python line; empty: not known."""
    frames = own_frames(thread.frames) if thread is not None else ()
    source = next((frame.source for frame in frames if not frame.native), None)
    match = _LINE.search(source or "")
    return f"{match[0]})" if match is not None else ""
