"""Settings of a process that trains: start, threads, device, memory, timeouts, its batches.

It must cost a step almost nothing, and nothing if the plan does not ask for it.
"""

import copy
import gc
import sys
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, settings, slot

_LEAST = 8  # what is left of a sequence, and what its length is a multiple of
# The greatest length; the size of the newest batch, and of the newest step's.
_seen = {"length": 0, "batch": 0, "step": 0}


def stagger(entry):
    """stagger-start: ranks of one machine begin one after the other, at their first import.

    Folders are made, caches filled and extensions built by then. Programs that a rank starts have
    its number, too, and do not wait again.
    """
    local_rank, ranks = slot.words[L.W_LOCAL_RANK] - 1, slot.words[L.W_LOCAL_WORLD]
    if local_rank < 0 or ranks == 1:
        return False, "no launcher has started another rank on this machine"
    if not slot.claim("staggered-%d-%d" % (slot.attempt, local_rank)):
        return True, "already waited in another process of this rank"
    each_s = int(entry.get("n", 10))
    # The ranks before the last one wait for it in their first collective.
    silent_s = each_s * max(local_rank, ranks - 1)
    slot.words[L.W_EXPECT_UNTIL_NS] = slot.now_ns() + int(silent_s * 1e9)
    if local_rank == 0:
        return True, "local rank 0 begins"
    place = milestones.begin("wait for the start of local rank %d" % local_rank)
    time.sleep(each_s * local_rank)
    milestones.end(place)
    return True, "began %d s after local rank 0" % (each_s * local_rank)


def apply(torch):
    settings.attempted("omp-1", _one_thread, torch)
    settings.prepare("cpu-not-mps", "training_settings", "without_mps", torch)
    settings.prepare("cpu", "cpu_only", "apply", torch)
    settings.prepare("memory-relief", "training_settings", "relieve", torch)


def _one_thread(_, torch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return True, str(before) + " -> 1 threads"


def without_mps(torch):
    """MPS is reported as unavailable; a device that is named outright stays.

    The result is reported after the first step, by the device of the parameters.
    """
    mps = torch.backends.mps
    mps.is_available = phases.like(lambda: False, mps.is_available)
    after_first_step(
        lambda device: settings.report(
            "cpu-not-mps", device == "cpu", "parameters are on " + device
        )
    )


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


def longer_if_given(entry, bound):
    """A group without a timeout gets the first one's, which is longer then anyway."""
    if bound.arguments.get("timeout") is None:
        return True, ""
    return longer_timeout(entry, bound)


def longer_timeout(entry, bound):
    """raise-ddp-timeout: init_process_group waits longer."""
    from datetime import timedelta

    wanted = timedelta(seconds=float(entry.get("seconds", 7200)))
    before = bound.arguments.get("timeout")
    if before is not None and before >= wanted:
        return True, "already " + str(before)
    bound.arguments["timeout"] = wanted
    said = "the default" if before is None else str(before)
    return True, "timeout " + said + " -> " + str(wanted)


def apply_to_batches(torch):
    """Prepare what changes a batch, in the process that trains: so it holds in every framework.

    A batch that is not understood must stay as it is.
    """
    wanted = settings.wanted()
    loading = sys.modules["torch.utils.data.dataloader"]
    if "shorter-sequences" in wanted or "eval-batch" in wanted:
        _patch_batches(torch, loading._BaseDataLoaderIter)
    if "eval-batch" in wanted:
        _patch_evaluations(torch, loading.DataLoader)
        phases.after_steps(lambda *_: _seen.update(step=_seen["batch"]))
    if not settings.UNUSED.keys().isdisjoint(wanted):
        after_first_step(lambda _device: settings.report_unused())


def _patch_batches(torch, iterator):
    original = iterator.__next__
    times = int((settings.parameters("shorter-sequences") or {"times": 0}).get("times", 1))

    def __next__(self):
        batch = original(self)
        try:
            if torch.is_grad_enabled():
                _seen["batch"] = getattr(self._index_sampler, "batch_size", None) or 0
            if times and hasattr(batch, "items") and "input_ids" in batch:
                batch = _shorter(batch, times)
        except Exception as error:
            notes.note("a batch was left as it is: " + type(error).__name__)
        return batch

    iterator.__next__ = phases.unseen_by_dynamo(phases.like(__next__, original))


def _shorter(batch, times):
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in batch.items()}
    length = shapes["input_ids"][-1]
    _seen["length"] = greatest = max(_seen["length"], length)
    most = max(_LEAST, (greatest >> times) // _LEAST * _LEAST)
    names = [name for name in batch if shapes[name] == shapes["input_ids"]]
    others = [name for name in batch if name not in names and length in shapes[name][1:]]
    others += [name for name in batch if name.startswith("cu_seq")]
    ends = (slice(0, most), slice(length - most, length))
    parts = [end for end in ends if all(_is_enough(name, batch[name], end) for name in names)]
    why = "sequences of %d -> %d" % (greatest, most)
    if length <= most:
        if greatest <= most:
            settings.report("shorter-sequences", False, "sequences of %d stay" % greatest)
    elif others or not parts:
        why = others[0] + " has that length, too" if others else "nothing to learn from is left"
        settings.report("shorter-sequences", False, "a batch stays: " + why)
    else:
        batch = copy.copy(batch)
        for name in names:
            batch[name] = batch[name][..., parts[0]].contiguous()
        settings.report("shorter-sequences", True, why)
    return batch


def _is_enough(name, value, part):
    """Whether no row would be all padding (a loss over nothing is NaN), and a label is left."""
    if name == "labels":
        return bool((value[..., part] != -100).any())
    if name.endswith("_mask") and name != "special_tokens_mask":
        return bool((value[..., part].any(-1) | ~value.any(-1)).all())
    return True


def _patch_evaluations(torch, loader):
    """What is iterated while gradients are off is an evaluation, and nothing else surely is.

    Lightning has counted the batches by then: it would leave out the rest.
    """
    sampler, original = sys.modules["torch.utils.data"].BatchSampler, loader.__iter__

    def __iter__(self):
        try:
            counted = "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules
            batches, most = self.batch_sampler, _seen["step"]
            if not torch.is_grad_enabled() and not counted and type(batches) is sampler:
                before = batches.batch_size
                if 0 < most < before:
                    batches.batch_size = most
                    settings.report("eval-batch", True, "evaluation %d -> %d" % (before, most))
        except Exception as error:
            notes.note("an evaluation was left as it is: " + type(error).__name__)
        return original(self)

    loader.__iter__ = phases.unseen_by_dynamo(phases.like(__iter__, original))
