"""Celery's workers: without a task they idle, which is no stall; a task is judged from its start.

By Celery's own signals, which are there for this. A process that only sends tasks fires none.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, slot

# Of a pool of threads or greenlets several tasks may run at once.
_running: list = []


def arm(module):
    """Hook into a celery.signals that has just been imported."""
    module.worker_ready.connect(_ready, weak=False)
    module.worker_process_init.connect(_ready, weak=False)
    module.task_prerun.connect(_task_begins, weak=False)
    module.task_postrun.connect(_task_ended, weak=False)


def _ready(**_):
    _guarded(L.PHASE_IDLE)


def _task_begins(**_):
    _running.append(None)
    if len(_running) == 1:
        _guarded(L.PHASE_STARTUP)


def _task_ended(**_):
    del _running[:1]
    if not _running:
        _guarded(L.PHASE_IDLE)


def _guarded(phase):
    try:
        if slot.supervised:
            slot.open_slot()
            phases.set_phase(phase)
    except Exception as error:
        notes.note("the phase of a task was not noted: " + type(error).__name__)


# A worker of a pool is forked: what its parent runs is not its own.
slot.on_fork_child.append(_running.clear)
