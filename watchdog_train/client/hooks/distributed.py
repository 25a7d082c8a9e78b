"""Ranks by torch.distributed: whoever joins a process group is one, with the number it gives there.

Without RANK in the environment (torch.multiprocessing.spawn, most of all) nothing else tells.
It must not change what the call gives or raises.
"""

import sys

from watchdog_train.client import (
    milestones,
    phases,
    roles,
    server,
    settings,
    slot,
    training_settings,
)

_NAME = "init_process_group"


def arm(module):
    """torch.distributed.distributed_c10d has just been imported."""
    original = getattr(module, _NAME)
    _replace(module, _NAME, original, _joining(module, original))
    group = module.new_group
    _replace(module, "new_group", group, _grouping(group))


def _replace(module, name, original, wrapper):
    for place in (module, sys.modules.get("torch.distributed")):
        if getattr(place, name, None) is original:
            setattr(place, name, wrapper)


def _grouping(original):
    """A group without a timeout gets that of the first one, which is longer then by itself."""
    if settings.parameters("raise-ddp-timeout") is None:
        return original

    def new_group(*args, **kwargs):
        if kwargs.get("timeout") is not None:
            args, kwargs = training_settings.longer_timeout(original, args, kwargs)
        return original(*args, **kwargs)

    return phases.like(new_group, original)


def _joining(module, original):
    inner = original
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]

    def init_process_group(*args, **kwargs):
        # Said before, too: in the rendezvous a rank may wait for ever for the others.
        try:
            given = dict(zip(names, args), **kwargs)  # noqa: B905 - of Python 3.10
            rank, local_rank, world = roles.group_rank(given)
            if rank is not None:
                slot.become_rank(rank, local_rank, world)
        except Exception:
            pass
        args, kwargs = training_settings.longer_timeout(inner, args, kwargs)
        result = original(*args, **kwargs)
        try:
            local_rank = roles.number("LOCAL_RANK")
            slot.become_rank(module.get_rank(), local_rank, module.get_world_size())
            server.start(module.get_world_size())
        except Exception:
            pass
        return result

    return milestones.around(_NAME, phases.like(init_process_group, original))


_WRAPPERS = {
    "DistributedDataParallel": "wrap in DDP",
    "FullyShardedDataParallel": "wrap in FSDP",
}


def parallel(module):
    """Hook into a module that has just been imported: of DDP, of FSDP, or of fully_shard."""
    for name, place in _WRAPPERS.items():
        if name in vars(module):
            milestones.around_method(vars(module)[name], "__init__", place)
    if "fully_shard" in vars(module):
        module.fully_shard = milestones.around("wrap in FSDP", module.fully_shard)
