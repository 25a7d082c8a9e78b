"""The families of causes, one file per subject, in the order in which they count.

Of several that fit, the most certain one is the cause; of equally certain ones the first of ORDER.
"""

from __future__ import annotations

from watchdog_train.explain.cause import REGISTERED, Family
from watchdog_train.explain.families import (
    compilers,
    distributed,
    ends,
    fork,
    gpu,
    health,
    loading,
    memory,
    services,
    threads,
)

__all__ = [
    "ORDER", "compilers", "distributed", "ends", "fork", "gpu", "health", "known_families",
    "loading", "memory", "services", "threads",
]  # fmt: skip

ORDER = (
    "waiting-for-input", "gpu-fault", "oom-killer", "cuda-oom", "descriptors-exhausted",
    "shm-exhausted", "fork-cuda-init", "memory-thrash", "nan-loss",
    "fork-logging-lock", "fork-tokenizers", "fork-hdf5", "fork-native-lock", "spawn-start",
    "import-lock", "lock-in-destructor", "gil-deadlock", "pin-memory-thread",
    "dataloader-shutdown", "datasets-map-num-proc", "disk-io", "triton-autotune", "file-lock",
    "compile-worker", "logger-service-init", "hub-download",
    "fsdp-state-gather", "collective-mismatch", "rank0-only-work", "rank-left-early", "ddp-init",
    "nccl-comm-init", "exit-join", "mps-hang", "cuda-sync", "healthy-slow",
    "dataloader-worker-stuck", "cpu-thread-contention",
    "dataloader-worker-died", "store-rendezvous", "gloo-timeout", "nccl-timeout-unattributed",
)  # fmt: skip
"""External waits and exhausted resources, then forks, threads and libraries, then the ranks
among each other; messages that other processes print too come last."""


def known_families() -> tuple[Family, ...]:
    return tuple(REGISTERED[name] for name in ORDER)
