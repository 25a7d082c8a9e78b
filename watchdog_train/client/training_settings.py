"""Settings of a process that trains: threads, device, memory, timeouts of its process group.

It must cost a step next to nothing, and nothing at all where the plan does not ask for it.
"""

import gc

from watchdog_train.client import notes, phases, settings


def apply(torch):
    """Apply what the plan asks for to a torch that has just been imported."""
    settings.attempted("omp-1", _one_thread, torch)
    if settings.parameters("cpu-not-mps") is not None:
        _without_mps(torch)
    settings.prepare("cpu", "cpu_only", "apply", torch)
    settings.prepare("memory-relief", "training_settings", "relieve", torch)


def _one_thread(_, torch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return True, str(before) + " -> 1 threads"


def _without_mps(torch):
    """Whoever asks for MPS hears that there is none; a device that is named outright stays.

    What has come of it is told after the first step, by the device of the parameters.
    """
    try:
        mps = torch.backends.mps
        before = mps.is_available

        def is_available():
            return False

        mps.is_available = phases.like(is_available, before)
    except Exception as error:
        settings.report("cpu-not-mps", False, type(error).__name__)
        return
    after_first_step(_tell_device)


def _tell_device(device):
    settings.report("cpu-not-mps", device == "cpu", "parameters are on " + device)


def after_first_step(tell):
    """Call it with the device of the parameters, once a step has been made."""
    told: list = []

    def step_done(optimizer, args, kwargs):
        try:
            # It stays: taken out here, the others of this very step would not be called.
            if not told:
                told.append(True)
                tell(str(optimizer.param_groups[0]["params"][0].device))
        except Exception as error:
            notes.note("the device is not known: " + type(error).__name__)

    phases.after_steps(step_done)


def relieve(torch):
    """memory-relief: after some steps free what can be, and wait for the GPU.

    An error that the GPU has pending is raised there, in optimizer.step(), and not later.
    """
    every = int((settings.parameters("memory-relief") or {}).get("n", 5))
    steps = [0]

    def step_done(optimizer, args, kwargs):
        steps[0] += 1
        if steps[0] % every:
            return
        freed, where = gc.collect(), []
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            where.append("CUDA")
        elif "mps" in str(optimizer.param_groups[0]["params"][0].device):
            torch.mps.synchronize()
            torch.mps.empty_cache()
            where.append("MPS")
        if steps[0] == every:
            device = " and ".join(where) or "no memory of a GPU"
            why = "step %d: %d objects collected, %s" % (every, freed, device)
            settings.report("memory-relief", True, why)

    phases.after_steps(step_done)


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
