"""Ranks by torch.distributed: whoever joins a process group is one, with the number it gives there.

Without RANK in the environment (torch.multiprocessing.spawn, most of all) nothing else tells.
It must not change what the call gives or raises.
"""

import sys

from watchdog_train.client import milestones, phases, roles, server, slot

_NAME = "init_process_group"


def arm(module):
    """torch.distributed.distributed_c10d has just been imported."""
    original = getattr(module, _NAME)
    wrapper = _joining(module, original)
    for place in (module, sys.modules.get("torch.distributed")):
        if getattr(place, _NAME, None) is original:
            setattr(place, _NAME, wrapper)


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
        result = original(*args, **kwargs)
        try:
            local_rank = roles.number("LOCAL_RANK")
            slot.become_rank(module.get_rank(), local_rank, module.get_world_size())
            server.start(module.get_world_size())
        except Exception:
            pass
        return result

    return milestones.around(_NAME, phases.like(init_process_group, original))
