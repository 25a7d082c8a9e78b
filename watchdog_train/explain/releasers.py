"""A wait that one thread of a library must end, where that thread died of an exception.

Known owners: pools of multiprocessing, executors of concurrent.futures, the pin-memory thread of a
DataLoader. Nothing is concluded while another thread of the program works, for it may end the wait.
"""

from __future__ import annotations

from watchdog_train.core.diagnosis.facts import ProcessEvidence
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack, any_matches, frame_matches
from watchdog_train.core.model import ExceptionFact
from watchdog_train.core.model import waits as w
from watchdog_train.explain.waits import kernel_wait, own_frame

_OWNERS = (
    (
        "get|wait|next|join (*multiprocess*/pool.py)",
        "_handle_workers|_handle_tasks|_handle_results (*multiprocess*/pool.py)",
    ),
    (
        "result|exception|wait|as_completed|shutdown (concurrent/futures/*)",
        "run (concurrent/futures/process.py|*loky/process_executor.py)",
    ),
    (
        "_get_data|_try_get_data (torch/utils/data/dataloader.py)",
        "_pin_memory_loop (torch/utils/data/_utils/pin_memory.py)",
    ),
)
"""Frames of waiting threads, and the functions of the threads that end such a wait. The others may
spin forever without the one that died."""
_OURS = "* (watchdog_train/client/*)"


def dead_releaser(process: ProcessEvidence, thread: ThreadStack | None) -> ExceptionFact | None:
    """The exception of the thread that alone could end this thread's wait, which has no timeout."""
    died, wait = process.died, kernel_wait(process, thread)
    if died is None or thread is None or not isinstance(wait, w.MutexWait) or wait.timed:
        return None
    if len(process.thread_waits) != process.os_threads:
        return None
    raised = [Frame(function=p.function, file=p.file, line=p.line) for p in died.frames]
    for waits, releases in _OWNERS:
        ended = next((f for f in raised if frame_matches(releases, f)), None)
        if ended is None or not any_matches(waits, thread.frames):
            continue
        others = [one for one in process.threads if one is not thread]
        replaced = any(
            f.name == ended.name and f.file == ended.file for t in others for f in t.frames
        )
        if not replaced and not any(_works(process, tid, releases) for tid in process.thread_waits):
            return died
    return None


def _works(process: ProcessEvidence, tid: int, owner: str) -> bool:
    """Whether a thread works that belongs neither to this object nor to wtrain."""
    fact = process.thread_waits[tid]
    stack = next((one for one in process.threads if one.os_id == tid), None)
    if stack is not None and any_matches(f"{owner} || {_OURS}", stack.frames):
        return False
    if fact.state in ("R", "D") or isinstance(fact.wait, w.Running):
        return True
    moved = fact.unchanged is not True and not fact.is_ticker and not fact.wait.timed
    return moved and (stack is None or own_frame(stack) is not None)
