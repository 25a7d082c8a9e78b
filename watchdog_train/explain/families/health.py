"""Not a problem, or not proven to be one."""

from __future__ import annotations

from watchdog_train.core.diagnosis.idle import WORKER_LOOP
from watchdog_train.explain import frame_sets as sets
from watchdog_train.explain.cause import Cause, family, likely, possible
from watchdog_train.explain.scene import Captured, Scene

_FOR_OTHERS = (
    f"{sets.LOADER_WAIT} || {sets.COLLECTIVE} || {sets.WAITS_FOR_RANKS} || {sets.SYNCHRONISES}"
)
_SEEN = "{who} was seen at work. If the step counter moves, all is well, only slow."


@family("healthy-slow", kind="slow", of=("file_lock", "sleep", "batch", "tcp"))
def works(scene: Scene, process: Captured) -> Cause | None:
    """{who} works: its stack changed between two samples."""
    if scene.why == "crash":
        return None
    rests = process.trains and not process.busy and process.stack.inner(sets.NO_TASK, depth=24)
    if rests and not any(one.any_passes(sets.HAS_A_TASK) for one in scene.captured):
        return likely("{who} waits for its next task: nothing is stuck.")
    if process.any_passes(sets.EXTENSION_LOCK) and scene.builds_extension(process):
        return likely("Another process builds the extension that {who} waits for.")
    if process.role == "worker" and not process.is_idle:
        return _of_worker(scene, process)
    if process.role == "rank" and process.changed:
        steady = any(one.is_steady for one in scene.ranks)
        runs = process.busy and process.is_runnable
        return possible() if (not steady if scene.why == "manual" else runs) else None
    return _alive(scene, process) if scene.why == "manual" else None


def _of_worker(scene: Scene, process: Captured) -> Cause | None:
    """A loader worker that works on a batch that is waited for."""
    parent = process.parent
    if process.changed and parent is not None and parent.stack.passes(sets.LOADER_WAIT):
        return possible()
    waited_for = any(one.stack.passes(sets.LOADER_WAIT) for one in scene.ranks)
    rests = any(one.resting and not one.is_idle for one in scene.workers)
    fetches = process.stack.passes(WORKER_LOOP, sets.FETCHING)
    works = process.running or scene.steps_go_on
    seen = scene.why == "manual" and works and fetches and waited_for and not rests
    return possible(_SEEN) if seen else None


def _alive(scene: Scene, process: Captured) -> Cause | None:
    """In a dump on request: steps continue, or all processes in it wait for orders."""
    computes = process.role == "rank" and process.running and process.stack.avoids(_FOR_OTHERS)
    if computes and scene.steps_go_on:
        return possible(_SEEN)
    if process.is_idle and not any(
        (one.is_captured and not one.is_idle) or one.has_ended or one.is_uninterruptible
        for one in scene.captured
    ):
        return possible("Only processes were read that wait for orders, as in a healthy run.")
    return None
