"""Which threads and processes wait like this in every healthy run. Pure.

An idle helper is no evidence; a main thread is never a helper.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_train.core.diagnosis.stacks import (
    ThreadStack,
    find_chain,
    frame_matches,
    is_library,
    own_frames,
)

_NATIVE_WAIT = "*wait*|*futex*|*suspend*|*sleep*|syscall|*barrier*|*cond*"
_HELPERS: tuple[tuple[str, ...], ...] = (
    ("run (tqdm/_monitor.py)",),
    ("_feed (*multiprocess*/queues.py|billiard/queues.py)", "wait (threading.py)"),
    ("_pin_memory_loop", "select|poll|wait|_poll|get|do_one_step"),
    ("run_forever|_run_once (asyncio/base_events.py)", "select|poll (selectors.py)"),
    ("_read_thread|_recv_msg (torch/_inductor/compile_worker/*)",),
    ("_serve (*multiprocess*/resource_sharer.py)", "accept|select|_accept"),
    ("_handle_workers|_handle_tasks|_handle_results (*multiprocess*/pool.py)",),
    ("_handle_*|body (billiard/pool.py)",),
    ("serve_forever (socketserver.py)", "select|poll (selectors.py)"),
    ("*heartbeat*|*_gc_loop|*garbage_collect*|*keep_alive*|*keepalive*", "wait|sleep|select|get"),
    ("run|_run (tensorboard/*|torch/utils/tensorboard/*|tensorboardX/*)",),
    (
        "*loop_check_status|check_*|_thread_body|_run_job|*_loop|_run|run (wandb/*)",
        "wait|get|select|acquire|sleep|read|recv|readline",
    ),
    ("* (watchdog_train/client/*)",),
    ("* (*pydevd*|*debugpy*|*ipykernel*|*zmq*|*tornado*|*IPython/core/history*)",),
    (
        "_serve|_event_loop|run|_monitor* (ray/*|grpc/*|fsspec/asyn.py)",
        "wait|select|poll|sleep|recv",
    ),
    ("* (prometheus_client/*|sentry_sdk/*|opentelemetry/*|pynvml*)",),
    (
        "*ThreadPool*main_loop*|*execute_native_thread_routine*",
        "*cond_wait*|*futex*|*condition_variable*",
    ),
    ("*gomp_thread_start*|*kmp_launch_worker*|*kmp_launch_thread*", _NATIVE_WAIT),
    ("*blas_thread_server*|*tbb*worker*|*rayon_core*main_loop*|*WorkerThread*run*", _NATIVE_WAIT),
    ("*ncclProxyProgress*|*ncclProxyService*|*ncclProxyServiceUDS*|*ncclRasThread*",),
    ("*heartbeatMonitor*|*Watchdog*::run*|*watchdogHandler*|*ncclCommWatchdog*", "*wait*"),
    ("*ReadyQueue::pop*",),
    ("*cuda*EventHandler*|*cudart*", "poll|__poll"),
)
"""Chains, outermost frame first, of threads that wait like this in every healthy run."""
_BUSY_PINNING = "rebuild_*|recvfds|recv_handle|detach|pin_memory|_new_shared* || answer_challenge"
"""In a pinning thread: it works or is stuck, and does not wait for a worker."""
_POOL_THREAD = "_worker (concurrent/futures/thread.py)"


def is_idle_helper(thread: ThreadStack) -> bool:
    """Whether this thread waits like this in every healthy run; never true of a main thread."""
    if thread.main:
        return False
    frames = thread.frames
    if not frames:
        return True
    python = [frame for frame in frames if not frame.native]
    if python and frame_matches(_POOL_THREAD, python[0]):
        return True
    for chain in _HELPERS:
        if find_chain(chain, frames):
            return "_pin_memory_loop" not in chain or not any(
                frame_matches(_BUSY_PINNING, frame) for frame in frames
            )
    # A native thread of which only its start and its wait are known.
    return all(frame.native and frame_matches(_NATIVE_NOTHING, frame) for frame in frames)


_NATIVE_NOTHING = (
    "*futex*|*pthread_cond_*|*sem_wait*|*nanosleep*|poll|__poll|epoll_wait|select|accept*|read|__read|"
    "syscall|clone|__clone*|clone3|start_thread|0x*|??|*condition_variable*|__GI_*|__libc_*|"
    "*lll_lock_wait*private*|*_thread_start|*thread_start*"
)


def busiest_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The main thread, else the first that is no idle helper."""
    working = [thread for thread in threads if thread.frames and not is_idle_helper(thread)]
    return next((thread for thread in working if thread.main), working[0] if working else None)


def places_at_work(threads: Sequence[ThreadStack]) -> frozenset[tuple[tuple[str, int], ...]]:
    """Where the threads are that are no idle helpers; a change is life."""
    return frozenset(
        tuple((frame.function, frame.line) for frame in thread.frames)
        for thread in threads
        if not is_idle_helper(thread)
    )


WORKER_LOOP = "_worker_loop (torch/utils/data/*|torchdata/*)"
_QUEUE_GET = "get (*multiprocess*/queues.py)"


def is_idle_worker(threads: Sequence[ThreadStack]) -> bool:
    """Whether this is a loader worker that waits for the next task from its parent."""
    for thread in threads:
        frames = [frame for frame in own_frames(thread.frames) if not frame.native]
        for position, frame in enumerate(frames):
            if frame_matches(WORKER_LOOP, frame):
                above = frames[:position]
                # User code above the loop is a signal handler at work.
                return (
                    bool(above)
                    and frame_matches(_QUEUE_GET, above[-1])
                    and all(map(is_library, above))
                )
    return False


_IDLE_MAINS: tuple[tuple[str, ...], ...] = (
    ("main|_main (torch/_inductor/compile_worker/*)",),
    ("worker (*multiprocess*/pool.py)", "get (*multiprocess*/queues.py)"),
    ("_process_worker (concurrent/futures/process.py|loky/*|joblib/*)", _QUEUE_GET),
    ("workloop|wait_for_job (billiard/pool.py)", "recv|poll|wait|get|_recv|wait_for_job"),
    ("main (multiprocessing/resource_tracker.py|multiprocessing/forkserver.py)",),
    ("serve_forever|serve_client|accepter (*multiprocess*/managers.py)",),
)
_AT_WORK = "_map_single|_write_generator_to_queue|apply_function*|_call_and_write* || _run_jobs"


def is_idle_process(threads: Sequence[ThreadStack]) -> bool:
    """Whether all its threads wait for work, such as a loader or pool worker's."""
    if is_idle_worker(threads):
        return True
    working = [own_frames(one.frames) for one in threads if not is_idle_helper(one)]
    return bool(working) and all(
        any(find_chain(chain, frames) for chain in _IDLE_MAINS)
        and not any(frame_matches(_AT_WORK, frame) for frame in frames)
        for frames in working
    )
