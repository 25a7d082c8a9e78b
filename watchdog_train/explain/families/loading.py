"""Loading of data."""

from __future__ import annotations

from watchdog_train.core.diagnosis.idle import WORKER_LOOP
from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import (
    Cause,
    declare,
    family,
    held_at_fork,
    likely,
    possible,
    proven,
)
from watchdog_train.explain.messages import BUS_ERROR
from watchdog_train.explain.scene import Captured, Scene

_ENDS_LOADER = (
    "_shutdown_workers|_shutdown_worker|_shutdown|_try_shutdown_all|__del__|_clean_up_worker|"
    "_cleanup* (torch/utils/data/*|torchdata/*|paddle/io/*)"
)
_AT_EXIT = "_try_get_data || _exit_function || _shutdown (threading.py)"
_REBUILDS = "rebuild_*|recvfds|recv_handle|detach|answer_challenge|Client|_new_shared*"
_MAPS = "iflatmap_unordered|map|filter|_map* (datasets/*)"
_GETS = "get|wait|join|next|sleep|_callmethod|poll|select|_poll|recv|recv_bytes|_recv|acquire"
_PYTHON_LOCK = (
    "*PyThread_acquire_lock*|*rlock_acquire*|*lock_PyThread*|acquire_timed*|_PyMutex_LockTimed"
)


@family("pin-memory-thread", "pytorch/pytorch#11985", kind="hang", of=("batch", "pipe"),
        remedies=("pin-memory-off", "persistent-workers-off", "file-system-sharing",
                  "upgrade-library"))  # fmt: skip
def pinning_thread(_: Scene, process: Captured) -> Cause | None:
    """The thread that pins batches waits for a worker that does not hand over its tensor."""
    stuck = any(one.passes("_pin_memory_loop", _REBUILDS) for one in process.stacks)
    return likely() if stuck else None


@family("dataloader-shutdown", "pytorch/pytorch#39570", kind="hang",
        remedies=("num-workers-0", "persistent-workers", "upgrade-library"))  # fmt: skip
def loader_does_not_stop(_: Scene, process: Captured) -> Cause | None:
    """A DataLoader worker does not exit. Its data is no longer needed."""
    waits = "join|wait|poll|set|put|acquire|__enter__|notify*"
    stops = process.trains and process.stack.passes(_ENDS_LOADER, waits)
    return likely() if stops and process.stack.avoids(_AT_EXIT) else None


@family("datasets-map-num-proc", "huggingface/datasets#8491", kind="hang", of=("pipe",),
        remedies=("num-proc-none", "less-host-memory", "preprocess-before-launch"),
        victims=True)  # fmt: skip
def map_waits_for_processes(scene: Scene, process: Captured) -> Cause | None:
    """A datasets map waits for its processes, and none of them works."""
    if not process.stack.passes(_MAPS, _GETS):
        return None
    if any(child.has_ended for child in process.children):
        return likely("A process of a datasets map has died. The map cannot finish without it.")
    works = any((one.busy or one.running) and not one.is_idle for one in process.children)
    if works or scene.any_changed or scene.logs.moves():
        return None
    return likely() if process.flat or process.resting else possible()


@family("dataloader-worker-stuck", "pytorch/pytorch#87995", kind="hang",
        of=("sleep", "batch", "tcp", "pipe"),
        remedies=("num-workers-0", "loader-timeout", "file-system-sharing", "spawn"))  # fmt: skip
def worker_does_not_finish(scene: Scene, process: Captured) -> Cause | None:
    """A DataLoader worker does not finish its batch. Its Python stack does not tell why."""
    stack, parent = process.stack, process.parent
    if process.trains and _loader_waits_alone(process):
        return possible("What the DataLoader workers do could not be told from the evidence.")
    if not (process.helps and stack.passes(WORKER_LOOP, sets.FETCHING)) or process.is_idle:
        return None
    locked = process.doing_what == "python_lock" or stack.passes(_PYTHON_LOCK)
    if not process.spawned and (process.is_cut_off or (process.flat and locked)):
        return held_at_fork(
            process,
            "A DataLoader worker waits for a lock that was most likely held in the main process at "
            "the fork.",
            remedies=("num-workers-0", "spawn"),
        )
    if any(one.changed for one in scene.workers):
        return None
    if parent is not None and parent.stack.passes(sets.LOADER_WAIT):
        return likely()
    unread = process.role == "worker" and (parent is None or not parent.is_captured)
    if unread and (process.flat or process.resting):
        return possible("A worker does not finish its batch; who waits for it could not be read.")
    return None


def _loader_waits_alone(process: Captured) -> bool:
    """Whether it waits for a batch while no child was seen to work or has ended."""
    ends = "_shutdown_workers || _reset"
    return any(
        one.passes(sets.LOADER_WAIT, _GETS) and one.avoids(ends) for one in process.working
    ) and not any(
        child.has_ended or child.changed or child.busy
        or (child.role == "worker" and child.is_captured and not child.is_idle)
        for child in process.children
    )  # fmt: skip


@family("dataloader-worker-died", "ROCm/omnitrace#196", kind="crash", of=("batch",),
        remedies=("num-workers-0",), symptom=True)  # fmt: skip
def worker_died(scene: Scene, process: Captured) -> Cause | None:
    """A DataLoader worker has died. The reason is in that worker, not in who reports it."""
    waits = any(one.trains and one.stack.passes(sets.LOADER_WAIT) for one in scene.captured)
    return likely() if process.helps and process.has_ended and waits else None


declare("descriptors-exhausted", "pytorch/pytorch#973", kind="crash", of=("batch", "pipe"),
        remedies=("file-system-sharing", "persistent-workers", "num-workers-0"),
        says="A process has as many files open as it may: each tensor of a worker, each pipe and "
        "each socket is one. Raise the limit (`ulimit -n`), or find what is never "
        "closed.")  # fmt: skip
_shared_memory = declare(
    "shm-exhausted", "pytorch/pytorch#5040", kind="crash", of=("batch", "SIGBUS"),
    remedies=("bigger-shm", "num-workers-0", "file-system-sharing"),
    says="Shared memory (/dev/shm) is full. DataLoader workers pass every batch through it.",
)  # fmt: skip


@_shared_memory.job
def _bus_error(scene: Scene) -> Cause | None:
    if "SIGBUS" not in scene.signals:
        return possible() if scene.why != "crash" and scene.shm_is_full else None
    if scene.shm_is_full:
        return proven()
    return possible(BUS_ERROR) if scene.why == "crash" or scene.shm_is_full is None else None
