"""Settings of a process that trains: threads, memory, timeouts of its process group.

It must cost a step next to nothing, and nothing at all where the plan does not ask for it.
"""

import sys

from watchdog_train.client import settings
from watchdog_train.client.hooks import dynamo


def apply(torch):
    """Apply what the plan asks for to a torch that has just been imported."""
    settings.attempted("omp-1", _one_thread, torch)
    settings.attempted("memory-relief", _memory_relief, torch)


def _one_thread(_, torch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return True, str(before) + " -> 1 threads"


def _memory_relief(entry, torch):
    every = max(1, int(entry.get("every", 100)))
    steps = [0]

    def step_done(optimizer, args, kwargs):
        try:
            steps[0] += 1
            if steps[0] % every == 0:
                _relieve(torch)
        except Exception:
            pass

    dynamo.remember(step_done)
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(step_done)
    return True, "every " + str(every) + " optimizer steps"


def _relieve(torch):
    import gc

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    mps = getattr(torch, "mps", None)
    if mps is not None and torch.backends.mps.is_available():
        mps.synchronize()
        mps.empty_cache()


def longer_timeout(function, args, kwargs):
    """The arguments of init_process_group or new_group, with a longer timeout if the plan says."""
    entry = settings.parameters("raise-ddp-timeout")
    if entry is None:
        return args, kwargs
    try:
        from datetime import timedelta

        wanted = timedelta(seconds=float(entry.get("seconds", 7200)))
        bound = settings.bind(function, args, kwargs)
        before = bound.arguments.get("timeout")
        if before is not None and before >= wanted:
            settings.report("raise-ddp-timeout", True, "already " + str(before))
            return args, kwargs
        bound.arguments["timeout"] = wanted
        said = "the default" if before is None else str(before)
        settings.report("raise-ddp-timeout", True, "timeout " + said + " -> " + str(wanted))
        return bound.args, bound.kwargs
    except Exception as error:
        settings.report("raise-ddp-timeout", False, type(error).__name__ + ": " + str(error)[:200])
        return args, kwargs
