"""Settings of what a step sees: how long sequences are, how large an evaluation's batch is.

They are made where a batch comes out of its loader, in the process that trains: so they hold in
every framework, whatever its workers do. A batch that is not understood must stay as it is.
"""

import copy
import sys

from watchdog_train.client import notes, phases, settings

_LEAST = 8  # what is left of a sequence, and what its length is a multiple of
_UNUSED = {
    "no-eval": "only the Trainers of transformers and Lightning can be told not to evaluate",
    "eval-batch": "no evaluation with a larger batch has begun so far",
    "shorter-sequences": "no DataLoader has given a batch with input_ids",
    "subset": "no DataLoader has been made",
}
# The greatest length; the size of the newest batch, and of that of the newest step.
_seen = {"length": 0, "batch": 0, "step": 0}


def apply(torch):
    """Prepare what the plan asks for."""
    wanted = settings.wanted()
    loading = sys.modules["torch.utils.data.dataloader"]
    if "shorter-sequences" in wanted or "eval-batch" in wanted:
        _patch_batches(torch, loading._BaseDataLoaderIter)
    if "eval-batch" in wanted:
        _patch_evaluations(torch, loading.DataLoader)
    if any(identifier in wanted for identifier in _UNUSED):
        phases.after_steps(_step_done)


def _step_done(optimizer, args, kwargs):
    _seen["step"] = _seen["batch"]
    while _UNUSED:
        identifier, why = _UNUSED.popitem()
        if identifier not in notes.answered():
            settings.report(identifier, False, why)


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
    """The batch with its sequences cut, or the batch itself."""
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
