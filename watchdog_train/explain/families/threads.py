"""Threads of one process: the interpreter lock, imports, native pools."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible
from watchdog_train.explain.scene import Captured, Scene

_FINALIZES = "Py_FinalizeEx|Py_Finalize*|_exit_function|_shutdown (threading.py)"
_IMPORTS = (
    f"{sets.IMPORT_LOCK} || _find_and_load|_find_and_load_unlocked|_load_unlocked|exec_module "
    "(<frozen importlib*>|importlib/*)"
)
_LOCKS = (
    "*pthread_mutex_*lock*|*pthread_cond_wait*|*pthread_rwlock_*lock*|__lll_lock_wait*|*sem_wait*"
)
_NATIVE_JOIN = (
    "*__cxa_guard_acquire*|*LockLatch*|*pthread_join*|__pthread_clockjoin_ex|*std::thread::join*|"
    "*::~*|*ncclCommAbort*|*ncclCommDestroy*|*EventDestroy*|*cudaStreamDestroy*|*decref*wait*|"
    "*shutdown*|*std::future*wait*|*std::condition_variable::wait*|__lll_lock_wait*|"
    "*pthread_mutex_lock*|cudaLaunchKernel*|cuLaunchKernel*|*cudaFree*"
)
_OMP_BARRIER = (
    "*gomp_*barrier*|*__kmp_*barrier*|*__kmp_wait_*|*kmp_flag*|*__kmp_suspend*|GOMP_parallel*|"
    "*__kmp_fork_call*|*__kmpc_fork_call*|*blas_thread*|*exec_blas*"
)
_WANTED = f"{sets.TAKES_GIL} || PyThread_acquire_lock* || *ReadyQueue*"


@family("import-lock", kind="hang", remedies=("none-user-fix",))
def import_lock(_: Scene, process: Captured) -> Cause | None:
    """Two threads wait for each other's imports. Import before threads are started."""
    waiting = [one for one in process.working if one.inner(sets.IMPORT_LOCK, depth=3)]
    importing = [one for one in process.working if one.passes(_IMPORTS)]
    if waiting and len(importing) > 1:
        return likely()
    return possible("Another thread is importing the same module.") if waiting else None


@family("gil-deadlock", "pytorch/pytorch#56017", kind="hang",
        remedies=("upgrade-library", "destroy-process-group"))  # fmt: skip
def interpreter_lock(scene: Scene, process: Captured) -> Cause | None:
    """One thread waits for the interpreter lock, and its holder waits in native code for that
    thread.
    """
    stacks, main = process.stacks, process.stack
    joins = any(one.inner(_NATIVE_JOIN, depth=6) and one.avoids(_WANTED) for one in stacks)
    wanted = any(one.inner(sets.TAKES_GIL) for one in stacks)
    if joins and wanted and not any(one.passes(_FINALIZES) for one in stacks):
        return likely()
    if not process.holds_gil:
        return None
    if process.flat and process.in_kernel("futex") and main.inner(_LOCKS, depth=2):
        return likely(
            "{who} holds the interpreter lock and waits for a native lock at {frame}. "
            "No other thread of it can run."
        )
    still = (process.flat or process.resting) and process.doing_what != "device"
    if still and scene.standing != "some-left":
        return possible(
            "{who} holds the interpreter lock and sleeps at {frame}. No other Python thread of it "
            "can run."
        )
    return None


@family("cpu-thread-contention", kind="slow", remedies=("omp-1", "spawn"))
def threads_wait_for_each_other(_: Scene, process: Captured) -> Cause | None:
    """The threads of a native pool wait for each other: there are more of them than cores, or two
    OpenMP runtimes.
    """
    elsewhere = "_worker_loop || *cuda*|*nccl*|*c10d*|*__kmp_launch_*"
    waits = process.trains and process.stack.inner(_OMP_BARRIER, depth=3)
    return likely() if waits and process.stack.avoids(elsewhere) else None
