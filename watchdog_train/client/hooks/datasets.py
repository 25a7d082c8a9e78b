"""Preparing data with datasets is phase load; the setting num-proc-none is applied here."""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import phases, settings


def arm(module):
    """Hook into a datasets.arrow_dataset that has just been imported."""
    for name in ("map", "filter"):
        original = getattr(module.Dataset, name)
        setattr(module.Dataset, name, _prepared(original))


def _prepared(original):
    def wrapper(*args, **kwargs):
        token = phases.enter(L.PHASE_LOAD)
        try:
            args, kwargs = settings.without_processes(original, args, kwargs)
            return original(*args, **kwargs)
        finally:
            phases.leave(token)

    return phases.like(wrapper, original)
