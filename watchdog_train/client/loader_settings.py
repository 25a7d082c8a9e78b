"""Settings of data loading: the arguments of a DataLoader, and batches that cannot be loaded.

An argument that does not fit goes through untouched, so that a mistake of the user's raises what
it always raised.
"""

import os
import sys
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, phases, settings, slot
from watchdog_train.client.hooks import dynamo

_WORKER_ARGUMENTS = (
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
)
# A worker that is gone, or a device in trouble, is no bad batch: going on would hide it.
_NOT_THE_BATCH = ("DataLoader worker (pid", "DataLoader timed out", "Pin memory thread")
_MOST_LOG_BYTES = 1 << 20


def apply(torch):
    """Prepare what the plan asks for."""
    if any(identifier in settings.wanted() for identifier in _LOADER):
        _patch_loader()
    settings.attempted("file-system-sharing", _file_system_sharing)
    settings.attempted("skip-bad-batches", _skip_bad_batches)


def without_processes(original, args, kwargs):
    """The arguments of Dataset.map or filter: in this process and written in small parts."""
    entry = settings.parameters("num-proc-none")
    if entry is None:
        return args, kwargs
    try:
        bound = settings.bind(original, args, kwargs)
        arguments = bound.arguments
        before = arguments.get("num_proc")
        at_once = int(entry.get("writer_batch_size", 100))
        # Not the map's own batch size: what its function makes of a batch may hang on it.
        written = arguments.get("writer_batch_size") or 1000
        if written > at_once and "writer_batch_size" in bound.signature.parameters:
            arguments["writer_batch_size"] = at_once
        if before is None:
            # Dataset.filter calls map in turn: what has been said stays.
            if "num-proc-none" not in notes.answered():
                settings.report("num-proc-none", True, "num_proc was not set")
        else:
            arguments["num_proc"] = None
            settings.report("num-proc-none", True, "num_proc " + str(before) + " -> None")
        return bound.args, bound.kwargs
    except Exception as error:
        why = "arguments do not fit: " + type(error).__name__
        settings.report("num-proc-none", False, why)
        return args, kwargs


def _file_system_sharing(_):
    import torch.multiprocessing as shared

    if "file_system" not in shared.get_all_sharing_strategies():
        return False, "this system has no sharing strategy file_system"
    before = shared.get_sharing_strategy()
    shared.set_sharing_strategy("file_system")
    return True, before + " -> file_system"


def _skip_bad_batches(entry):
    module = sys.modules["torch.utils.data.dataloader"]
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__
    map_style = module._DatasetKind.Map
    limit = int(entry.get("limit", 100))
    skipped = [0]

    def __next__(self):
        while True:
            try:
                batch = original(self)
            except StopIteration:
                again = _owed(self)
                if again is None:
                    raise
                return again
            except Exception as error:
                if skipped[0] >= limit or not _may_skip(self, map_style, error):
                    raise
                skipped[0] += 1
                _log_skipped(skipped[0], limit, error)
                _owe(self)
                continue
            if _owing(self):
                self._wtrain_last = batch
            return batch

    iterator.__next__ = dynamo.remember(phases.like(__next__, original))
    return True, "up to " + str(limit) + " batches that cannot be loaded are skipped"


def _owe(iterator):
    """Lightning validates, and calls it an epoch, at the batch whose number is that of all: an
    epoch that is shorter by the skipped ones would pass without a validation.
    """
    try:
        steps = sys.modules.get("watchdog_train.client.hooks.lightning_steps")
        if steps is not None and steps.trains():
            iterator._wtrain_owed = _owing(iterator) + 1
    except Exception:
        pass


def _owing(iterator):
    return iterator.__dict__.get("_wtrain_owed", 0)


def _owed(iterator):
    """The last batch once more at the end of the epoch for each one that was skipped, else None."""
    if not _owing(iterator):
        return None
    iterator._wtrain_owed -= 1
    return iterator.__dict__.get("_wtrain_last")


def _may_skip(iterator, map_style, error):
    """Whether the next batch may come in the place of the one that has failed."""
    try:
        # A generator that has raised has ended: an iterable dataset would end its epoch.
        if iterator._dataset_kind != map_style or isinstance(error, MemoryError):
            return False
        text = str(error)
        if text.startswith(_NOT_THE_BATCH) or "CUDA" in text or "MPS" in text:
            return False
        if _several_ranks():
            notes.note("skip-bad-batches: not with several ranks")
            return False
        return True
    except Exception:
        return False


def _several_ranks():
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size() > 1
    return (slot.words[L.W_WORLD_SIZE] or 1) > 1


def _log_skipped(number, limit, error):
    try:
        import json

        # Of an exception from a worker the last line is the exception itself.
        lines = str(error).strip().splitlines() or [""]
        what = type(error).__name__ + ": " + lines[-1][:300]
        if number in (1, 10, limit):
            notes.note("skip-bad-batches: " + str(number) + " skipped so far, the newest " + what)
        if not slot.attempt_dir:
            return
        line = {
            "t": time.time(),
            "number": number,
            "batches": slot.words[L.W_BATCHES],
            "phase": L.PHASES[slot.words[L.W_PHASE]],
            "error": what,
        }
        name = os.path.join(slot.attempt_dir, "skipped." + str(os.getpid()) + ".jsonl")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(name, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < _MOST_LOG_BYTES:
                os.write(descriptor, json.dumps(line).encode("ascii") + b"\n")
        finally:
            os.close(descriptor)
    except Exception:
        pass


def _patch_loader():
    loader = sys.modules["torch.utils.data.dataloader"].DataLoader
    original = loader.__init__

    def __init__(self, *args, **kwargs):
        try:
            args, kwargs = _loader_arguments(original, self, args, kwargs)
        except Exception as error:
            notes.note("a DataLoader was left as it is: " + type(error).__name__)
        original(self, *args, **kwargs)

    loader.__init__ = phases.like(__init__, original)


def _loader_arguments(original, loader, args, kwargs):
    bound = settings.bind(original, (loader, *args), kwargs)
    arguments = bound.arguments
    for identifier, change in _LOADER.items():
        settings.attempted(identifier, change, arguments)
    return bound.args[1:], bound.kwargs


def _workers(arguments):
    return int(arguments.get("num_workers") or 0)


_SEEDING_FRAMEWORKS = (
    "transformers",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
)


def _no_workers(_, arguments):
    before = _workers(arguments)
    if before == 0:
        return True, "already 0 workers"
    data = sys.modules["torch.utils.data.dataset"]
    dataset = arguments.get("dataset")
    if isinstance(dataset, data.IterableDataset) and before > 1 and not _shards_itself(dataset):
        # Each worker would have read all of it: without workers an epoch is shorter.
        return False, "an IterableDataset gives other batches without workers"
    if not _only_seeds(arguments.get("worker_init_fn")):
        return False, "the DataLoader has a worker_init_fn"
    arguments["num_workers"] = 0
    for name in _WORKER_ARGUMENTS:
        arguments.pop(name, None)
    return True, str(before) + " -> 0 workers"


def _shards_itself(dataset):
    """Whether workers share an iterable dataset among them: those of the library datasets do."""
    return type(dataset).__module__.split(".", 1)[0] == "datasets"


def _only_seeds(init):
    """Whether a worker_init_fn may be left out: none, or one by which a framework seeds workers.

    Trainer and Lightning set theirs always; without workers there is nothing to seed. Any other
    may fill the dataset, and fails in the main process, where get_worker_info() is None.
    """
    init = getattr(init, "func", init)
    module = getattr(init, "__module__", None) or ""
    return init is None or module.split(".", 1)[0] in _SEEDING_FRAMEWORKS


def _spawn(_, arguments):
    if _workers(arguments) == 0:
        return True, "no workers, nothing to start"
    before = arguments.get("multiprocessing_context")
    if before is not None:
        return False, "the DataLoader has a multiprocessing_context of its own"
    arguments["multiprocessing_context"] = "spawn"
    return True, "workers are spawned"


def _no_pinning(_, arguments):
    before = bool(arguments.get("pin_memory"))
    arguments["pin_memory"] = False
    return True, "pin_memory " + str(before) + " -> False"


def _no_persistence(_, arguments):
    before = bool(arguments.get("persistent_workers"))
    arguments.pop("persistent_workers", None)
    return True, "persistent_workers " + str(before) + " -> False"


def _timeout(entry, arguments):
    if _workers(arguments) == 0:
        return False, "no workers, a timeout would be an error"
    if arguments.get("timeout"):
        return False, "the DataLoader has a timeout of its own"
    seconds = float(entry.get("seconds", 600))
    if not seconds > 0:
        return False, "seconds must be positive"
    arguments["timeout"] = seconds
    return True, "timeout 0 -> " + str(seconds) + " s"


def _drop_last(_, arguments):
    if arguments.get("drop_last"):
        return True, "already set"
    if arguments.get("batch_sampler") is not None or arguments.get("batch_size", 1) is None:
        return False, "the DataLoader has a batch_sampler, or no batches, of its own"
    sampler = arguments.get("sampler")
    in_order = sampler is None or type(sampler).__name__ == "SequentialSampler"
    if in_order and not arguments.get("shuffle"):
        return False, "a DataLoader in order is left alone: evaluation needs every example"
    try:
        examples = len(arguments["dataset"] if sampler is None else sampler)
    except TypeError:
        return False, "the dataset has no length"
    if examples < arguments.get("batch_size", 1):
        return False, "there is no whole batch"
    arguments["drop_last"] = True
    return True, "drop_last False -> True"


# Workers go first: the others look at how many are left.
_LOADER = {
    "num-workers-0": _no_workers,
    "spawn": _spawn,
    "pin-memory-off": _no_pinning,
    "persistent-workers-off": _no_persistence,
    "loader-timeout": _timeout,
    "drop-last": _drop_last,
}
