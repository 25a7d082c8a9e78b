"""Threads of one process: the interpreter lock, imports, native pools."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible
from watchdog_train.explain.scene import Captured, Scene

_IMPORTS = (
    f"{sets.IMPORT_LOCK} || _find_and_load*|_load_unlocked|exec_module "
    "(<frozen importlib*>|importlib/*)"
)
_LOCKS = "*pthread_mutex_*lock*|*pthread_cond_wait*|*pthread_rwlock_*lock*|__lll_*wait*|*sem_wait*"
_NATIVE_JOIN = (
    "*__cxa_guard_acquire*|*LockLatch*|*pthread_join*|__pthread_clockjoin_ex|*std::thread::join*|"
    "*::~*|*ncclCommAbort*|*ncclCommDestroy*|*EventDestroy*|*cudaStreamDestroy*|*shutdown*|"
    "*std::future*wait*|*std::condition_variable::wait*|__lll_lock_wait*|*pthread_mutex_lock*|"
    "cudaLaunchKernel*|cuLaunchKernel*|*cudaFree*"
)
_NO_JOIN = f"{sets.TAKES_GIL} || PyThread_acquire_lock* || *ReadyQueue*"
_FINALIZES = "Py_Finalize*|_exit_function|_shutdown (threading.py)"
_OMP_BARRIER = "*gomp_*barrier*|*__kmp_*|*kmp_flag*|GOMP_parallel*|*blas_thread*|*exec_blas*"


@family("import-lock", kind="hang", remedies=("none-user-fix",))
def import_lock(_: Scene, process: Captured) -> Cause | None:
    """Threads wait for each other's imports. Import before threads are started."""
    waits = any(one.inner(sets.IMPORT_LOCK, depth=3) for one in process.working)
    several = sum(one.passes(_IMPORTS) for one in process.working) > 1
    return (likely if several else possible)() if waits else None


@family("lock-in-destructor", "getsentry/sentry-python#803", kind="hang",
        remedies=("none-user-fix",))  # fmt: skip
def destructor_takes_a_lock(_: Scene, process: Captured) -> Cause | None:
    """A destructor ran in the middle of code that holds a lock, and takes the same lock.

    The garbage collector may call it at any line. A lock in a destructor has to be an RLock.
    """
    runs = process.stack.inner("__del__ || __call__ (weakref.py)", depth=8)
    return likely() if runs and process.sealed and process.doing_what == "python_lock" else None


@family("gil-deadlock", "pytorch/pytorch#56017", kind="hang",
        remedies=("upgrade-library", "destroy-process-group"))  # fmt: skip
def interpreter_lock(scene: Scene, process: Captured) -> Cause | None:
    """The holder of the interpreter lock waits in native code for a thread that wants it."""
    stacks, main = process.stacks, process.stack
    joins = any(one.inner(_NATIVE_JOIN, depth=6) and one.avoids(_NO_JOIN) for one in stacks)
    wanted = any(one.inner(sets.TAKES_GIL) for one in stacks)
    if joins and wanted and not any(one.passes(_FINALIZES) for one in stacks):
        return likely()
    waits = "{who} holds the interpreter lock and waits at {frame}. No other thread of it can run."
    if not process.holds_gil:
        return None
    if process.flat and process.in_kernel("futex") and main.inner(_LOCKS, depth=2):
        return likely(waits)
    still = (process.flat or process.resting) and process.doing_what != "device"
    return possible(waits) if still and scene.standing != "some-left" else None


@family("cpu-thread-contention", kind="slow", remedies=("omp-1", "spawn"))
def threads_wait_for_each_other(_: Scene, process: Captured) -> Cause | None:
    """Threads of a native pool wait for each other: too many, or two OpenMP runtimes."""
    elsewhere = "_worker_loop || *cuda*|*nccl*|*c10d*|*__kmp_launch_*"
    waits = process.trains and process.stack.inner(_OMP_BARRIER, depth=3)
    return likely() if waits and process.stack.avoids(elsewhere) else None
