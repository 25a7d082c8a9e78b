"""Celery's workers: without a task they idle, which is no stall.

A task is judged from the first thing in it that belongs to a training: others may wait for hours.
By Celery's own signals, which are there for this. A process that only sends tasks fires none.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, settings, slot

_LONGEST_NAME = 120
_PATCHED = ("eventlet", "gevent")
# By id; of a pool of threads or greenlets several tasks may run at once.
_running: dict = {}


def arm(module):
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


def _task_begins(task=None, task_id=None, **_):
    _running[task_id] = {
        "name": str(getattr(task, "name", None))[:_LONGEST_NAME],
        "late": bool(getattr(task, "acks_late", False)),
        "rejects": bool(getattr(task, "reject_on_worker_lost", False)),
    }
    phases.after_idle = L.PHASE_STARTUP
    _tell()


def _task_ended(task_id=None, **_):
    _running.pop(task_id, None)
    if not _running:
        _idles()
    _tell()


@slot.harmless
def _tell():
    slot.words[L.W_MILESTONE] += 1
    notes.touch()


# A worker of a pool is forked: what its parent runs is not its own.
slot.on_fork_child.append(_running.clear)
notes.parts["task"] = lambda: next(iter(_running.values()), None)


def celery_worker(module):
    """A worker in one process, if the plan asks for it: the solo pool, no gossip, no mingle.

    Its own arguments are changed before it reads them, regardless of the command or the app.
    """
    if settings.parameters("celery-solo") is None:
        return

    @phases.replacing(module.Worker, "__init__")
    def init(original, self, *args, **kwargs):
        settings.attempted("celery-solo", _alone, self, kwargs)
        original(self, *args, **kwargs)


def _alone(_, worker, arguments):
    given = arguments.get("pool") or arguments.get("pool_cls") or worker.app.conf.worker_pool
    # A class of celery.concurrency.NAME, as the command gives it, or a name.
    before = str(getattr(given, "__module__", given)).rpartition(".")[2]
    if before in _PATCHED:
        return False, "the pool " + before + " has changed this process already"
    arguments.update(
        pool=None, pool_cls="solo", concurrency=1, autoscale=None, without_gossip=True,
        without_mingle=True,
    )  # fmt: skip
    return True, "pool " + before + " -> solo, without gossip and mingle"
