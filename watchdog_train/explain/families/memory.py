"""Memory of the machine."""

from __future__ import annotations

from watchdog_train.explain.cause import Cause, declare, family, likely, possible, proven
from watchdog_train.explain.messages import KILLED
from watchdog_train.explain.scene import Captured, Scene

_RECLAIMS = (
    r"mem_cgroup_\w*high|do_swap_page|swap_?read|swapin|read_swap_cache|swap_cluster|zswap|zram|"
    r"shrink_(?:node|lruvec)|try_to_free|throttle_direct_reclaim|balance_pgdat|"
    r"__alloc_pages_slowpath"
)


@family("memory-thrash", kind="slow", of=("disk", "batch"),
        remedies=("less-host-memory", "batch-halve-accumulate"))  # fmt: skip
def swapping(_: Scene, process: Captured) -> Cause | None:
    """The machine has too little memory and swaps. The training is thousands of times slower."""
    return likely() if process.in_kernel(_RECLAIMS) else None


@swapping.job
def _machine_swaps(scene: Scene) -> Cause | None:
    if scene.why == "crash" or not scene.swaps:
        return None
    return likely() if scene.is_short_of_memory else possible()


_killer = declare(
    "oom-killer", "hpcaitech/ColossalAI#3172", kind="crash", of=("SIGKILL",),
    remedies=("less-host-memory", "batch-halve-accumulate"),
    says="The memory killer ended a process.",
)  # fmt: skip


@_killer.job
def _killed(scene: Scene) -> Cause | None:
    if "SIGKILL" not in scene.signals or scene.why == "manual" or scene.oom_killed is False:
        return None
    return proven() if scene.oom_killed else possible(KILLED)


@_killer.message
def _counted(scene: Scene, cause: Cause) -> Cause:
    return proven(kind="crash") if cause.says == KILLED and scene.oom_killed else cause
