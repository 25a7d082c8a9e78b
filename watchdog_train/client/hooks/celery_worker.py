"""A Celery worker in one process, if the plan asks for it: the solo pool, no gossip, no mingle.

Its own arguments are changed before it reads them, whatever the command or the app has set.
"""

from watchdog_train.client import phases, settings

_PATCHED = ("eventlet", "gevent")


def arm(module):
    """Hook into a celery.apps.worker that has just been imported."""
    if settings.parameters("celery-solo") is None:
        return
    original = module.Worker.__init__

    def __init__(self, *args, **kwargs):
        settings.attempted("celery-solo", _alone, self, kwargs)
        original(self, *args, **kwargs)

    module.Worker.__init__ = phases.like(__init__, original)


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
