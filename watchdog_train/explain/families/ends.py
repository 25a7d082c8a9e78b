"""The end of life of processes, and numbers that are none."""

from __future__ import annotations

from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import ANY, Cause, declare, family, likely
from watchdog_train.explain.scene import Captured, Scene

_EXITING = "_exit_function (*multiprocess*/util.py|billiard/util.py) || _python_exit (concurrent/*)"
_HANDLERS = (
    "shutdown (logging/__init__.py) || _terminate_pool (*multiprocess*/pool.py) || "
    "_finalize_join (*multiprocess*/queues.py) || *atexit*|_run_exitfuncs|*at_exit*|"
    "_shutdown_all*|shutdown_compile_workers|_on_exit*"
)
_WAITS = (
    "join|_run_finalizers|_finalize_*|_terminate_pool|wait|poll|acquire|get|recv|sleep|select|"
    "result|_wait_for_tstate_lock|communicate|shutdown|close|flush|__enter__"
)
_FINALIZES = (
    "Py_Finalize*|finalize_modules*|__run_exit_handlers|exit|_exit|Py_Exit|__GI_exit|__libc_exit|"
    "*::exit|__cxa_finalize*|_Py_Finalize*|atexit_callfuncs*"
)
_ABORTS = (
    "*ncclCommAbort*|*ncclCommDestroy*|*ncclCommFinalize*|*~ProcessGroupNCCL*|"
    "*ProcessGroupNCCL::*shutdown*|*ProcessGroupNCCL::abort*|*NCCLComm::*bort*"
)
_NATIVE_WAITS = (
    "*join*|*futex*|*cond_wait*|*lock_wait*|*sem_*|*poll*|*wait*|*ncclComm*|*select*|*sleep*|"
    "*read*|*yield*"
)


@family("exit-join", "pytorch/pytorch#162199", kind="hang", of=("tcp", "pipe"),
        remedies=("bounded-join-kill", "destroy-process-group", "compile-threads-1"))  # fmt: skip
def waits_at_exit(scene: Scene, process: Captured) -> Cause | None:
    """The work is done. The exit waits for a child, queue, thread or callback."""
    stack, alike = process.stack, scene.standing in ("alone", "same", "none")
    exits = stack.passes(_EXITING, _WAITS) and (process.trains or process.role == "worker")
    ends = stack.passes("_shutdown (threading.py)") or stack.passes(_HANDLERS, _WAITS)
    ends = ends or stack.passes(_FINALIZES, _NATIVE_WAITS)
    if stack.passes("_finalize_join (*multiprocess*/queues.py)"):
        return likely(
            "It has put items into a queue that its reader has not taken yet. Take them before "
            "join(), or call cancel_join_thread().",
            remedies=("bounded-join-kill", "none-user-fix"),
        )
    if exits or (process.trains and ends):
        return likely()
    takes_gil = any(one.inner(sets.TAKES_GIL) for one in process.stacks)
    aborts = alike and not takes_gil and process.any_passes(_ABORTS, _NATIVE_WAITS)
    apart = stack.passes(sets.DISMANTLES_GROUP) and (alike or scene.standing == "different-places")
    if process.trains and (aborts or apart):
        return likely("The process takes its process group apart, and that does not finish.")
    return None


declare("nan-loss", "bigscience-workshop/Megatron-DeepSpeed#396", kind="slow", of=(ANY,),
        remedies=("bf16",),
        says="The loss or the gradient is not a number, or overflows again and again. The training "
        "continues without learning.")  # fmt: skip
