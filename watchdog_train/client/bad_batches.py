"""skip-bad-batches: a batch that cannot be read or moved to the device is left out.

It must leave out nothing but a batch: the end of an epoch, a dead worker, a machine out of memory
or files and a broken CUDA context are raised. So is an epoch in which every batch is bad.
"""

import sys
from collections import deque

from watchdog_train.client import notes, phases, settings, slot

ID = "skip-bad-batches"
# Texts of errors of the machine or the process, not of a batch: the next one would fail, too.
_NOT_OF_A_BATCH = (
    "CUDA error", "HIP error", "Cannot re-initialize CUDA", "CUBLAS", "cuDNN", "NCCL", "bus error",
    "Too many open files", "No space left on device", "Cannot allocate memory",
    "shared memory", "MPS backend out of memory",
)  # fmt: skip

_ENDS = "an iterable dataset with workers, or that is a generator, ends with its first error"
_skipped = 0


class _Epoch:
    """One pass over a loader: counts of its batches, and the last skipped error."""

    def __init__(self, refused=False):
        self.asked = deque()  # type: deque
        self.of_a_batch = False
        self.position = self.good = self.bad = 0
        self.error = self.last = None
        self.just_skipped = False
        self.repeats = _count_must_stay()
        if refused:
            settings.report(ID, False, _ENDS)
        elif ID not in notes.answered():
            settings.report(ID, True, "at most %d batches of this process and attempt" % _most())

    def take(self, batch):
        self._passed()
        self.good += 1
        self.just_skipped = False
        if self.repeats:
            self.last = batch
        return batch

    def skip(self, error, what="read"):
        """Count and report a bad batch; False where it has to be raised."""
        global _skipped
        if isinstance(error, (StopIteration, MemoryError)) or any(
            said in str(error) for said in _NOT_OF_A_BATCH
        ):
            return False
        number, examples = self._passed()
        if _skipped >= _most():
            _tell("%d bad batches were skipped: the next one is raised" % _skipped)
            return False
        _skipped += 1
        self.bad += 1
        self.error, self.just_skipped = error, True
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        kind = type(error).__name__ + ": "
        said = lines[-1] if lines[-1].startswith(kind) else kind + lines[-1]
        _tell(
            "batch %d%s cannot be %s and is skipped (%d of at most %d): %s"
            % (number, examples, what, _skipped, _most(), said)
        )
        settings.report(ID, True, "%d of at most %d batches skipped" % (_skipped, _most()))
        return True

    def ends(self, lost=False):
        """No more batches: True if the last good one must be given once more.

        Raises the last skipped error if no batch was good, or if it may have ended the epoch early
        (`lost`).
        """
        error, self.error = self.error, None  # its traceback leads to the iterator
        if error is not None and (not self.good or (lost and self.just_skipped)):
            raise error from None
        again = self.repeats and self.bad > 0
        self.bad -= 1
        return again

    def _passed(self):
        self.position += 1
        examples = self.asked.popleft() if self.asked else None
        said = "" if examples is None else " of examples " + str(examples)[:200]
        return self.position - 1, said


def _most():
    return int((settings.parameters(ID) or {}).get("n", 100))


@slot.harmless
def _tell(text):
    """Into the output of the training, where its own errors are."""
    sys.stderr.write("wtrain: " + text[:600] + "\n")
    sys.stderr.flush()


def _count_must_stay():
    """Whether ranks wait for each other, or Lightning for the last batch: with fewer they hang."""
    torch = sys.modules["torch"]
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        return True
    lightning = "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules
    return lightning and torch.is_grad_enabled()


def apply(torch):
    module = sys.modules["torch.utils.data.dataloader"]
    base, several = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
    wrapper = torch._utils.ExceptionWrapper
    for kind in (module._SingleProcessDataLoaderIter, several):
        phases.replace(kind, "_next_data", _next_data)
    base._next_index = phases.after(base._next_index, _index_taken)
    base._reset = phases.before(_epoch_begins, base._reset)

    def data_came(iterator, data, *_args, **_kwargs):
        _epoch(iterator).of_a_batch = isinstance(data, wrapper)

    several._process_data = phases.before(data_came, several._process_data)


def _epoch(iterator):
    found = iterator.__dict__.get("_wtrain_epoch")
    if found is None:
        stream = iterator._dataset_kind == 1 and iterator._num_workers > 0
        found = iterator._wtrain_epoch = _Epoch(refused=stream)
    return found


def _next_data(original):
    def _next_data(self):
        epoch = _epoch(self)
        stream = self._dataset_kind == 1
        source = getattr(getattr(self, "_dataset_fetcher", None), "dataset_iter", None)
        while True:
            epoch.of_a_batch = False
            try:
                return epoch.take(original(self))
            except StopIteration:
                if epoch.ends(lost=stream and not hasattr(source, "gi_frame")):
                    return epoch.last
                raise
            except Exception as error:
                # A generator ends with what it raises: the rest of the epoch would be lost.
                over = stream and (self._num_workers or getattr(source, "gi_frame", 0) is None)
                if over:
                    settings.report(ID, False, _ENDS)
                if over or not epoch.of_a_batch or not epoch.skip(error):
                    raise

    return phases.like(_next_data, original)


def _index_taken(index, iterator):
    epoch = _epoch(iterator)
    if iterator._num_workers == 0:
        epoch.of_a_batch = True
    if iterator._dataset_kind == 0 and getattr(iterator, "_in_order", True):
        epoch.asked.append(index)


def _epoch_begins(iterator, *_args, **_kwargs):
    iterator.__dict__.pop("_wtrain_epoch", None)


class _Bad:
    def __init__(self, error):
        self.error = error


def of_accelerate(module):
    """Wrap the loader that accelerate prepares, also for a Trainer, and what moves its batches."""
    loader, move = module.DataLoaderShard, module.send_to_device
    original = loader.__iter__
    code = original.__code__

    def send_to_device(*args, **kwargs):
        try:
            return move(*args, **kwargs)
        except Exception as error:
            if sys._getframe(1).f_code is code:
                return _Bad(error)
            raise

    def __iter__(self):
        epoch = _Epoch()
        for batch in original(self):
            if type(batch) is not _Bad:
                yield epoch.take(batch)
            elif not epoch.skip(batch.error, "moved"):
                raise batch.error
        while epoch.ends():
            yield epoch.last

    module.send_to_device = phases.like(send_to_device, move)
    loader.__iter__ = phases.like(__iter__, original)


def of_lightning(strategy):
    """Wrap what moves the batches of Lightning: in place of a bad one it gets the one before."""
    epochs: dict = {}

    @phases.replacing(strategy, "batch_to_device")
    def batch_to_device(original, self, *args, **kwargs):
        key = (id(self), sys.modules["torch"].is_grad_enabled())
        if key not in epochs:
            epochs[key] = _Epoch()
        epoch = epochs[key]
        epoch.repeats = True
        try:
            return epoch.take(original(self, *args, **kwargs))
        except Exception as error:
            if not epoch.good or not epoch.skip(error, "moved"):
                raise
            return epoch.last
