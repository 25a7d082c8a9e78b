"""What one thread does: its wait by the kernel's data, with the name that only frames give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

import msgspec

from watchdog_train.core.diagnosis.facts import BUSY_CPU_SHARE, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import (
    WORKER_LOOP,
    busiest_thread,
    is_idle_helper,
    is_idle_process,
)
from watchdog_train.core.diagnosis.stacks import (
    Frame,
    ThreadStack,
    any_matches,
    frame_matches,
    is_library,
    own_frames,
)
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.explain import frame_sets

_TICKERS = re.compile(r"gloo_tcp_loop|pt_|cuda-|cuda\d|tqdm|asyncio_\d|QueueFeeder|wandb|IOThread")
"""Names of threads that tick or wait in every healthy run, whatever their frames."""
_BACKENDS = re.compile(
    r"gloo|pt_|cuda|nccl|NCCL|ZMQbg|grpc|event_engine|default-exec|resolver-exec|timer_manager|"
    r"jemalloc|tokio|hf-xet|iou-|OMP|tbb|rayon|polars|tf_|TF_|py-spy|wandb|bfc_|tqdm"
)
"""Names of native threads of libraries: they release no event or condition of a script."""
_WRAPPERS = (
    "wrapper|inner|_fn|__call__|_wrapped_call_impl|_call_impl|decorate_*|_compile|wrapped*|patched*"
)
_CLIENT = "* (watchdog_train/client/*)"
_LOOP = "_run_once (asyncio/base_events.py)"
_RESTS = f"{_CLIENT} || _worker (concurrent/futures/thread.py)"
"""Innermost frames of threads that never wake an event loop."""
_NATIVE_DEPTH = 12
_STORE = (
    "init_process_group|_create_c10d_store|_store_based_barrier|_env_rendezvous_handler|"
    "_tcp_rendezvous_handler|next_rendezvous|rendezvous|_new_process_group_helper|_rendezvous* "
    "(torch/distributed/*) || *TCPStore*|*TCPClient*|*FileStore*|*PrefixStore*"
)
_LEAVES_LOADER = "_shutdown_workers|_shutdown_worker|__del__ (torch/utils/data/*|torchdata/*)"
_DDP = (
    "_verify_param_shape*|_verify_model_across_ranks|_verify_params_across_processes|"
    "_sync_module_states|_sync_params_and_buffers|_broadcast_coalesced (torch/*)"
)
_REDUCER = "c10d::Reducer::*"
_DEBUGGER = (
    "cmdloop|interaction|_cmdloop|interactive (cmd.py|pdb.py|bdb.py|code.py|*ipdb*|IPython/*) || "
    "getpass|unix_getpass|_raw_input|fallback_getpass|win_getpass (getpass.py)"
)
_SERVES = "accept4|accept|_accept (socket.py) || accept4|sock_accept*"
_TAKES_ORDERS = (
    "main_loop|run_task_loop (ray/*) || block_thread|block (gradio/*) || run (wandb/agents/*)"
)
_POOL = "iflatmap_unordered (datasets/*) || get|wait|next (*multiprocess*/pool.py|billiard/pool.py)"
_BETWEEN = "*multiprocess*/queues.py|billiard/*"
_CHILD = "*multiprocess*/process.py|*multiprocess*/popen_*|subprocess.py"
_LOCKS = "filelock/*|filelock.py|portalocker/*|fasteners/*|*file_baton.py"
_NETWORK = "ssl.py|socket.py|urllib3/*|httpcore*/*|httpx*/*|http/client.py|aiohttp/*"
_BY_FRAME: tuple[tuple[str, x.Doing], ...] = (
    (_POOL, x.QueueWait(call="get", between_processes=True)),
    (f"get|_get|get_nowait ({_BETWEEN})", x.QueueWait(call="get", between_processes=True)),
    (f"put|_put ({_BETWEEN})", x.QueueWait(call="put", between_processes=True)),
    ("get (queue.py)", x.QueueWait(call="get")),
    ("put|join (queue.py)", x.QueueWait(call="put")),
    ("join|_wait_for_tstate_lock|_shutdown (threading.py)", x.JoinWait()),
    ("result|wait|as_completed|shutdown (concurrent/futures/*)", x.JoinWait()),
    (f"join|wait|poll|_wait|_try_wait|communicate|_communicate ({_CHILD})", w.ChildWait()),
    (
        f"wait|_poll_until_acquired|acquire ({_LOCKS})",
        w.FileLockWait(complete=False),
    ),
    ("acquire|__enter__ (*multiprocess*/synchronize.py)", w.SharedSemaphoreWait(complete=False)),
    (
        "wait|wait_for|acquire|__enter__|_acquire_restore (threading.py|logging/__init__.py)",
        x.PythonLockWait(),
    ),
    ("accept|_accept (socket.py)", w.TcpWait(call="accept")),
    (
        f"read|recv_into|readinto|recv|do_handshake|create_connection|connect|_recv* ({_NETWORK})",
        w.TcpWait(call="read"),
    ),
    ("select|poll|_poll|wait (selectors.py|*multiprocess*/connection.py|asyncio/*)", w.PollWait()),
    (
        "recv|_recv|_recv_bytes|recv_bytes (*multiprocess*/connection.py)",
        w.PipeWait(call="read", complete=False),
    ),
    ("wait4|waitid|os_waitpid|__waitpid|waitpid", w.ChildWait()),
    ("time_sleep|pysleep", w.SleepWait()),
    ("accept4|sock_accept*", w.TcpWait(call="accept")),
    ("sock_recv*|sock_connect*|sock_send*", w.TcpWait(call="read")),
    ("flock|fcntl_flock*", w.FileLockWait(complete=False)),
)
"""Waits by their frames, if the kernel knows no better; the first match counts."""
_NATIVE_LOCK = (
    "__lll_lock_wait*|*pthread_mutex_*lock*|*futex_wait*|*pthread_cond_*wait*|*sem_wait*|"
    "*lock_PyThread*|PyThread_acquire_lock*|rlock_acquire*|acquire_timed*"
)
_POOL = (
    "_handle_results|wait_result_broken_or_wakeup "
    "(*multiprocess*/pool.py|concurrent/futures/process.py)"
)
_SOURCES: tuple[tuple[re.Pattern[str], x.Doing], ...] = (
    (re.compile(r"\bsleep\("), w.SleepWait()),
    (re.compile(r"\bwith\s+[\w.\[\]\"']*(?:lock|mutex)\w*\s*[:,]|(?:lock|mutex)\w*\.acquire\(",
                re.IGNORECASE), x.PythonLockWait()),
    (re.compile(r"(?:^|[^\w.])(?:input|raw_input|getpass)\(|\bbreakpoint\(|set_trace\("),
     w.TerminalWait()),
    (re.compile(r"\bflock\(|\blockf\("), w.FileLockWait(complete=False)),
)  # fmt: skip
"""Calls of C functions leave no Python frame: the source line shows them."""


LAUNCH = "cudaLaunch*|cuLaunch*|hipLaunch*|hipModuleLaunch*"
"""Blocked where the queue of kernels is full."""
_DEVICE_WAITS = (
    "cuda*Synchronize*|cu*Synchronize*|hip*Synchronize*|cudaMemcpy*|cuMemcpy*|hipMemcpy*|"
    f"*memcpy_and_sync*|*_local_scalar_dense_cuda*|{LAUNCH}"
)
_BEGINS_KERNELS = (
    "*ModuleLoad*|*LibraryLoad*|cuLink*|nvrtc*|cuInit|*CtxCreate*|*PrimaryCtx*|*CommInit*|"
    "*cudnnCreate|*cublasCreate*|*lazy_init*|compile_fx*|_compile_inner|*autotun*|do_bench*|"
    "benchmark*"
)
"""Loads, compiles, initialises or measures kernels: slow, and no wait for a collective."""
_DEVICE_LINE = re.compile(r"[\w.\[\]]+\.(?:item|cpu|tolist|numpy|nonzero|synchronize|any|all|to)\(")


def deciding_thread(process: ProcessEvidence) -> ThreadStack | None:
    """The thread of the last beat, else the main one, unless that only waits for orders."""
    wanted = process.deciding_tid
    if wanted is not None:
        found = next((t for t in process.threads if t.os_id == wanted and t.frames), None)
        if found is not None:
            return found
    main = process.main
    if main is None or not main.frames:
        return busiest_thread(process.threads)
    innermost = next((frame for frame in main.frames if not frame.native), None)
    if innermost is None or not (
        frame_matches(_TAKES_ORDERS, innermost)
        or is_idle_helper(msgspec.structs.replace(main, main=False))
    ):
        return main
    others = [t for t in process.threads if t.frames and not t.main and not is_ticker(t)]
    return min(others, key=lambda thread: own_frame(thread) is None, default=main)


def is_ticker(thread: ThreadStack) -> bool:
    """Whether it never decides, neither alive nor dead."""
    named = thread.name is not None and _TICKERS.match(thread.name) is not None
    serves = any_matches(_SERVES, thread.frames[:6])
    return not thread.main and (named or serves or is_idle_helper(thread))


def working_threads(process: ProcessEvidence) -> tuple[ThreadStack, ...]:
    """Threads that could end a wait inside the process, without the deciding one."""
    deciding = deciding_thread(process)
    return tuple(t for t in process.threads if t.frames and t is not deciding and not is_ticker(t))


def kernel_wait(process: ProcessEvidence, thread: ThreadStack | None) -> w.Wait | None:
    """The thread's wait as the kernel reports it; None: not read."""
    fact = process.thread_waits.get(thread.os_id or 0) if thread is not None else None
    if fact is not None:
        return fact.wait
    return process.wait if thread is None or thread.main else None


def innermost_own(frames: Sequence[Frame]) -> int | None:
    return next((at for at, frame in enumerate(frames) if not is_library(frame)), None)


def own_frame(thread: ThreadStack | None) -> Frame | None:
    frames = own_frames(thread.frames) if thread is not None else ()
    at = innermost_own(frames)
    return frames[at] if at is not None else None


def places(thread: ThreadStack | None) -> tuple[x.Place | None, x.Place | None]:
    """The user's innermost own frame, and the library function that it called."""
    if thread is None:
        return None, None
    frames = own_frames(thread.frames)
    at = innermost_own(frames)
    above = [frame for frame in frames[:at] if not frame.native]
    called = [f for f in above if not frame_matches(f"{_WRAPPERS} || {_CLIENT}", f)] or above
    own = _place(frames[at]) if at is not None else None
    return own, _place(called[-1 if own is not None else 0]) if called else None


def _place(frame: Frame) -> x.Place:
    return x.Place(function=frame.name, file=frame.short, line=frame.line)


def doing(process: ProcessEvidence, thread: ThreadStack | None, *, several: bool = True) -> x.Doing:
    """The thread's wait, or its work; `several`: there may be other ranks."""
    wait = kernel_wait(process, thread)
    if process.state in ("T", "t") or isinstance(wait, w.Stopped):
        return wait if isinstance(wait, w.Stopped) else w.Stopped(traced=process.state == "t")
    if process.state in ("Z", "X"):
        return ended(process)
    frames = own_frames(thread.frames) if thread is not None else ()
    at = innermost_own(frames)
    call = frames[:at]
    named = _by_library(process, thread, call, frames, several=several)
    if named is not None:
        return named
    if wait is not None and not isinstance(
        wait, (w.MutexWait, w.PollWait, w.UnknownWait, w.Running)
    ):
        return wait
    if process.state == "D":
        return w.DiskWait(function=process.wchan)
    if isinstance(wait, w.MutexWait) and wait.timed and _is_timer(frames):
        return w.SleepWait(timed=True)
    by_frame = _by_frame(process, call, frames[at] if at is not None else None)
    if isinstance(wait, w.MutexWait) and not isinstance(by_frame, (w.SharedSemaphoreWait,)):
        # The holder of a native mutex is stored in it; a Python lock is known by frames alone.
        known = wait.owner_tid is not None or wait.owner_lives is False
        if not known and process.sealed and isinstance(by_frame, x.PythonLockWait | None):
            alone = not any(own_frame(t) for t in process.threads if t is not thread)
            return msgspec.structs.replace(by_frame or x.PythonLockWait(), sealed=alone)
        return wait if known or by_frame is None else by_frame
    polled = wait.waits if isinstance(wait, w.PollWait) else ()
    single = len(polled) == 1 and not isinstance(polled[0], w.UnknownWait)
    if by_frame is not None and not single:  # one object is more precise than the frame that polls
        return by_frame
    if isinstance(wait, w.PollWait):
        return polled[0] if len(polled) == 1 else wait
    if process.asks is not None or is_computing(process, thread):
        return x.Computing(cpu_share=process.cpu_share, changed=process.changed, asks=process.asks)
    if thread is not None and any_matches(_NATIVE_LOCK, frames[:3]):
        return w.MutexWait(address=0)
    return wait or w.UnknownWait(why="refused" if thread is None else "no_proc")


def device_call(thread: ThreadStack | None) -> str | None:
    """`cudaStreamSynchronize`; None: it waits for no device, or native frames are not known."""
    frames = thread.frames if thread is not None else ()
    native = takewhile(lambda frame: frame.native, frames)
    found = next((frame.name for frame in native if frame_matches(_DEVICE_WAITS, frame)), None)
    return None if any_matches(_BEGINS_KERNELS, frames) else found


def called_by(thread: ThreadStack | None) -> str:
    """`loss.item()`, by the text of the innermost Python line; empty: not known."""
    frames = own_frames(thread.frames) if thread is not None else ()
    source = next((frame.source for frame in frames if not frame.native), None)
    match = _DEVICE_LINE.search(source or "")
    return f"{match[0]})" if match is not None else ""


def _native_threads(process: ProcessEvidence) -> tuple[str, ...]:
    """Threads without Python that wake periodically or from outside the process.

    Idle pools (OpenMP, BLAS, Rayon) wait without a limit for a lock of this process: none of their
    threads acts before another thread does.
    """
    known = {thread.os_id for thread in process.threads}
    if None in known or not known:
        return ()
    return tuple(
        f"{fact.name} ({tid})"
        for tid, fact in sorted(process.thread_waits.items())
        if tid not in known
        and not fact.is_ticker
        and not _BACKENDS.match(fact.name)
        and _wakes(fact.wait)
    )


def _wakes(wait: w.Wait) -> bool:
    match wait:
        case w.MutexWait():
            return wait.timed
        case w.PollWait():  # a driver's thread, such as that of CUDA
            return not any(isinstance(each, w.DeviceWait) for each in wait.waits)
        case w.UnknownWait():
            return wait.why == "call"
    return not isinstance(wait, (w.DeviceWait, w.Ended, w.Stopped))


def hears_children(process: ProcessEvidence) -> bool:
    """Whether a thread of a pool wakes the others when a child of the process answers."""
    return any(any_matches(_POOL, thread.frames) for thread in process.threads)


def _is_timer(frames: Sequence[Frame]) -> bool:
    """The thread of a threading.Timer before its time."""
    return bool(frames) and all(frame.native or frame.short == "threading.py" for frame in frames)


def is_computing(process: ProcessEvidence, thread: ThreadStack | None) -> bool:
    if process.cpu_share is not None:
        return process.cpu_share >= BUSY_CPU_SHARE
    return process.changed is True or bool(thread is not None and thread.active)


def is_at_work(process: ProcessEvidence) -> bool:
    """Whether it computed between two samples, or was about to in one."""
    runs = process.state in ("R", "D") or isinstance(process.wait, w.Running)
    return runs or is_computing(process, process.main)


def _by_library(
    process: ProcessEvidence,
    thread: ThreadStack | None,
    call: Sequence[Frame],
    frames: Sequence[Frame],
    *,
    several: bool,
) -> x.Doing | None:
    """The object that a library waits for, where the kernel sees only a poll or a lock."""
    if any_matches(frame_sets.TAKES_GIL, frames[:_NATIVE_DEPTH]):
        owner = next((t for t in process.threads if t.owns_gil), None)
        return x.GilWait(
            owner_tid=owner.os_id if owner else None, owner=owner.name if owner else None
        )
    for frame in call:
        if frame_matches(frame_sets.COLLECTIVE, frame):
            return x.CollectiveWait(op=frame.name.rpartition("::")[2])
    if any_matches(_STORE, call):
        return x.StoreWait()
    elsewhere = any_matches(_LEAVES_LOADER, call) or any_matches(WORKER_LOOP, frames)
    if any_matches(frame_sets.LOADER_WAIT, call) and not elsewhere:
        return x.BatchWait()
    if any_matches(frame_sets.WAITS_FOR_RANKS, call) or any_matches(_DDP, call):
        return x.CollectiveWait()
    if (poll := _known_poll(process, thread, call)) is not None:
        return poll
    synchronises = any_matches(frame_sets.SYNCHRONISES, call)
    native = device_call(thread) or ""
    if is_computing(process, thread) and not (synchronises and (native or process.gpu is not None)):
        return None
    if synchronises:  # CUDA spins there by default: the CPU's work is none then
        return w.DeviceWait(path="", gpu=process.gpu, call=native, by=called_by(thread))
    sleeps = isinstance(kernel_wait(process, thread), w.SleepWait)
    if several and not sleeps and any_matches(frame_sets.BACKWARD, call):
        return x.CollectiveWait()
    if process.waits_for_input or any_matches(_DEBUGGER, call):
        wait = kernel_wait(process, thread)
        return w.TerminalWait(others=wait.others if isinstance(wait, w.PipeWait) else ())
    if any_matches(frame_sets.IMPORT_LOCK, frames[:3]):
        return x.ImportWait()
    return None


def _known_poll(
    process: ProcessEvidence, thread: ThreadStack | None, call: Sequence[Frame]
) -> x.Doing | None:
    """The lock that a library of file locks polls, or an event loop that nothing wakes."""
    if process.lock is not None and isinstance(_by_frame(process, call, None), w.FileLockWait):
        return process.lock
    wait = kernel_wait(process, thread)
    if not any_matches(_LOOP, call) or not isinstance(wait, w.PipeWait) or wait.timed:
        return None
    resting = [one for one in process.threads if one is thread or _rests(one)]
    # A native thread without a Python stack may wake the loop; so may a signal handler.
    alone = process.handles_signals == () and len(resting) == process.os_threads
    own_pipe = wait.complete and {ref.pid for ref in wait.others} == {process.pid}
    return x.LoopWait() if alone and own_pipe else None


def _rests(thread: ThreadStack) -> bool:
    innermost = next((frame for frame in thread.frames if not frame.native), None)
    return innermost is not None and frame_matches(_RESTS, innermost)


def _by_frame(process: ProcessEvidence, call: Sequence[Frame], own: Frame | None) -> x.Doing | None:
    for pattern, found in _BY_FRAME:
        if any_matches(pattern, call):
            return _of_threading(process, call) if isinstance(found, x.PythonLockWait) else found
    deciding = next((f for f in (*call, *((own,) if own else ())) if not f.native), None)
    if deciding is None or deciding.source is None:
        return None
    return next((f for pattern, f in _SOURCES if pattern.search(deciding.source[:500])), None)


def _of_threading(process: ProcessEvidence, call: Sequence[Frame]) -> x.PythonLockWait:
    """The kind of lock, by which functions of threading.py call each other in the stack."""
    names = [frame.name for frame in call if frame.short == "threading.py"]
    if "_wait" in names:
        return x.PythonLockWait(kind="barrier")
    if names[:1] != ["wait"]:
        return x.PythonLockWait()
    outside = x.PythonLockWait(
        kind="condition", signals=process.own_signals, native_threads=_native_threads(process)
    )
    if any(name in ("acquire", "__enter__") for name in names):
        return msgspec.structs.replace(outside, kind="semaphore")
    event = names.count("wait") > 1 or any(f.function == "Event.wait" for f in call)
    return msgspec.structs.replace(outside, kind="event") if event else outside


RAISED = "X"
"""State of a process whose exception alone still matters."""


def as_raised(evidence: Evidence) -> Evidence:
    """For an explanation: a process that raised and waits in its cleanup counts as ended.

    For limits its wait counts as it is.
    """
    processes = tuple(
        msgspec.structs.replace(p, state=RAISED)
        if p.exception is not None and p.exception.stays
        else p
        for p in evidence.processes
    )
    return msgspec.structs.replace(evidence, processes=processes)


def ended(process: ProcessEvidence) -> x.Doing:
    fact = process.ended
    if fact is None:
        waits_in = places(process.main)[0] if process.state == RAISED else None
        return x.End(unnoticed=process.state == "Z", raised=process.exception, stays_in=waits_in)
    return x.End(
        code=fact.end.code,
        signal=fact.end.signal,
        at_unix=fact.at_unix,
        unnoticed=fact.end.unnoticed,
        raised=process.exception,
    )


def is_idle(process: ProcessEvidence) -> bool:
    """Whether it waits for orders: a server, a loader worker, a pool worker without a task."""
    if process.state in ("Z", "X", "T", "t"):
        return False
    if isinstance(kernel_wait(process, process.main), w.SleepWait):
        return False  # who waits for orders waits for a descriptor or a lock
    if process.threads:
        return is_idle_process(process.threads)
    return w.is_server(process.wait)


def started_by(
    process: ProcessEvidence, thread: ThreadStack | None, *, several: bool = True
) -> Literal["backward", "ddp"] | None:
    """The caller of a thread's collective; that of a backward pass may run in another thread."""
    if thread is None or not several or not any_matches(frame_sets.BACKWARD, thread.frames):
        return None
    frames = (frame for each in process.threads for frame in each.frames)
    return "ddp" if any(map(of_reducer, frames)) else "backward"


def of_reducer(frame: Frame) -> bool:
    return frame_matches(_REDUCER, frame)
