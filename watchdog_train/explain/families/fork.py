"""Processes that were forked or spawned."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, declare, family, held_at_fork, likely
from watchdog_train.explain.scene import Captured, Scene

_LOGS = (
    "acquire|_acquireLock|__enter__|handle|emit|flush (logging/*) || emit (loguru/_handler.py) || "
    "print|write|process_renderables|__exit__ (rich/*)"
)
_FLUSHES = "_flush_std_streams (*multiprocess*/util.py|billiard/util.py)"
_ENCODES = "encode_batch|encode_batch_fast|_batch_encode_plus|_encode_plus"
_HDF5 = "* (h5py/*|tables/*) || with_phil || H5*|*H5TS*|*H5FD*|*H5D_*"
_NATIVE_LOCK = (
    "*lll_lock_wait*|*pthread_mutex_lock*|*futex_*|syscall|*pthread_cond_wait*|*sem_wait*|"
    "*condition_variable*wait*|*std::mutex::lock*|*rwlock_*lock*|*gomp_*barrier*|do_wait|do_spin|"
    "*__kmp_*"
)
_IMPORTS_MAIN = "_fixup_main_from_path|_fixup_main_from_name (*multiprocess*/spawn.py)"


@family("fork-logging-lock", "dask/distributed#2446", kind="hang", of=("pipe",),
        remedies=("spawn", "num-workers-0"))  # fmt: skip
def logging_lock(_: Scene, process: Captured) -> Cause | None:
    """Another thread of the main process was most likely logging or printing at the fork."""
    logs = (process.helps or process.forked) and process.stack.inner(_LOGS, depth=3)
    flushes = process.stack.passes("_bootstrap|_launch|fork_exec|os_fork*", _FLUSHES)
    return held_at_fork(process) if not process.spawned and (logs or flushes) else None


@family("fork-tokenizers", kind="hang", of=("pipe",), remedies=("tokenizers-off", "num-workers-0"))
def forked_tokenizer(_: Scene, process: Captured) -> Cause | None:
    """The tokenizer's thread pool has its threads only in the main process."""
    if process.spawned or not (process.helps or process.forked):
        return None
    parallel, encodes = process.parallel_tokenizers, process.stack.inner(_ENCODES)
    inside = process.stack.passes("*tokenizers::*|*TokenizerImpl* || * (*tokenizers*)")
    encodes = encodes and (parallel or (parallel is None and not process.running))
    return held_at_fork(process) if inside or encodes else None


@family("fork-hdf5", "pytorch/pytorch#11887", kind="hang", of=("pipe",),
        remedies=("open-in-worker", "num-workers-0"))  # fmt: skip
def shared_hdf5_handle(_: Scene, process: Captured) -> Cause | None:
    """Workers share one HDF5 handle, most likely opened in the main process before the fork."""
    inside = process.helps and not process.spawned and process.stack.passes(_HDF5)
    return held_at_fork(process) if inside else None


@family("fork-native-lock", "pytorch/pytorch#75147", kind="hang", of=("pipe",),
        remedies=("num-workers-0", "spawn", "omp-1"))  # fmt: skip
def pool_copied_by_fork(_: Scene, process: Captured) -> Cause | None:
    """Threads that would release this lock or pool exist only in the main process."""
    stack = process.stack
    waits = stack.passes(sets.NATIVE_POOL) and stack.inner(_NATIVE_LOCK)
    inside = waits or stack.inner(sets.NATIVE_POOL, depth=1)
    forked = not process.spawned and (process.helps or process.forked)
    return held_at_fork(process) if forked and inside else None


declare("fork-cuda-init", "pytorch/pytorch#2971", kind="crash", of=("batch",),
        remedies=("num-proc-none", "num-workers-0", "spawn"),
        says="The GPU was used in a process that was forked after the main process had used "
        "it.")  # fmt: skip


@family("spawn-start", "pytorch/pytorch#105514", kind="hang", of=("pipe",),
        remedies=("num-workers-0", "main-guard"))  # fmt: skip
def main_script_runs_again(_: Scene, process: Captured) -> Cause | None:
    """A spawned process runs the main script again: `if __name__ == "__main__":` is missing."""
    works = "_worker_loop || _exit_function || _bootstrap (*multiprocess*/process.py)"
    starts = process.stack.passes("spawn_main (*multiprocess*/spawn.py)", _IMPORTS_MAIN)
    return likely() if starts and process.stack.avoids(works) else None
