"""Celery's workers: without a task they idle, which is no stall.

A task is judged from the first thing in it that belongs to a training: others may wait for hours.
By Celery's own signals, which are there for this. A process that only sends tasks fires none.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, slot

# Of a pool of threads or greenlets several tasks may run at once.
_running: list = []


def arm(module):
    """Hook into a celery.signals that has just been imported."""
    module.worker_ready.connect(_idles, weak=False)
    module.worker_process_init.connect(_idles, weak=False)
    module.task_prerun.connect(_task_begins, weak=False)
    module.task_postrun.connect(_task_ended, weak=False)


def _idles(**_):
    try:
        phases.after_idle = None
        if slot.supervised:
            slot.open_slot()
            phases.set_phase(L.PHASE_IDLE)
    except Exception as error:
        notes.note("an idle worker was not noted: " + type(error).__name__)


def _task_begins(**_):
    _running.append(None)
    phases.after_idle = L.PHASE_STARTUP


def _task_ended(**_):
    del _running[:1]
    if not _running:
        _idles()


# A worker of a pool is forked: what its parent runs is not its own.
slot.on_fork_child.append(_running.clear)
