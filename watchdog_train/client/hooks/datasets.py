"""Loading and preparing data with datasets is phase load; num-proc-none is applied here."""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import loader_settings, milestones, phases


def arm(module):
    """Hook into datasets.arrow_dataset or datasets.load."""
    if module.__name__ == "datasets.load":
        for name in ("load_dataset", "load_from_disk"):
            original = getattr(module, name)
            setattr(module, name, milestones.around("load dataset", original, L.PHASE_LOAD))
        return
    for name in ("map", "filter"):
        original = getattr(module.Dataset, name)
        place = milestones.around(name + " dataset", _prepared(original), L.PHASE_LOAD)
        setattr(module.Dataset, name, place)


def _prepared(original):
    def wrapper(*args, **kwargs):
        args, kwargs = loader_settings.without_processes(original, args, kwargs)
        return original(*args, **kwargs)

    return phases.like(wrapper, original)
