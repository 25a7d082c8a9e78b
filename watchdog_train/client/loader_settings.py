"""Settings of data loading: the arguments of a DataLoader and of Dataset.map.

An argument that does not fit goes through untouched, so that a mistake of the user's raises what
it always raised.
"""

import itertools
import sys

from watchdog_train.client import notes, settings

_WORKER_ARGUMENTS = ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")


def apply(torch):
    if any(identifier in settings.wanted() for identifier in _LOADER):
        loader = sys.modules["torch.utils.data.dataloader"].DataLoader
        loader.__init__ = settings.with_changes(loader.__init__, _change_loader, "a DataLoader")
    settings.attempted("file-system-sharing", _file_system_sharing)
    settings.prepare("skip-bad-batches", "bad_batches", "apply", torch)


def in_this_process(entry, bound):
    """num-proc-none: Dataset.map or filter in this process, written in small parts."""
    arguments = bound.arguments
    before = arguments.get("num_proc")
    at_once = int(entry.get("writer_batch_size", 100))
    # Not the map's own batch size: what its function makes of a batch may hang on it.
    written = arguments.get("writer_batch_size") or 1000
    if written > at_once and "writer_batch_size" in bound.signature.parameters:
        arguments["writer_batch_size"] = at_once
    if before is None:
        # Dataset.filter calls map in turn: the first report stays.
        return True, "" if "num-proc-none" in notes.answered() else "num_proc was not set"
    arguments["num_proc"] = None
    return True, "num_proc " + str(before) + " -> None"


def _file_system_sharing(_):
    import torch.multiprocessing as shared

    if "file_system" not in shared.get_all_sharing_strategies():
        return False, "this system has no sharing strategy file_system"
    before = shared.get_sharing_strategy()
    shared.set_sharing_strategy("file_system")
    return True, before + " -> file_system"


def _change_loader(arguments):
    for identifier, change in _LOADER.items():
        settings.attempted(identifier, change, arguments)


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


def _one_worker(_, arguments):
    before, data = _workers(arguments), sys.modules["torch.utils.data.dataset"]
    if before < 2:
        return False, "no more than one worker"
    if isinstance(arguments.get("dataset"), data.IterableDataset):
        return False, "an IterableDataset gives other batches with one worker"
    arguments["num_workers"] = 1
    return True, str(before) + " -> 1 workers"


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


def part_of(dataset, count):
    """A dataset that ends after so many examples; all else of it is that of `dataset`."""
    from torch.utils import data

    class Part(data.Dataset):  # type: ignore[misc]
        def __len__(self):
            return min(count, len(dataset))

        def __getitem__(self, index):
            if isinstance(index, int) and index >= count:
                raise IndexError(index)
            return dataset[index]

        def __getattr__(self, name):
            if name.startswith("__") and name != "__getitems__":
                raise AttributeError(name)
            return getattr(dataset, name)

        def __reduce__(self):  # for workers that are spawned
            return part_of, (dataset, count)

    class Stream(Part, data.IterableDataset):  # type: ignore[misc]
        def __iter__(self):
            worker = data.get_worker_info()  # workers share the examples among them
            first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
            return itertools.islice(iter(dataset), len(range(first, count, step)))

    return Stream() if isinstance(dataset, data.IterableDataset) else Part()


def first_rows(entry, arguments, name="dataset"):
    """Shorten the dataset among the arguments of a DataLoader or a Trainer."""
    count, dataset = max(1, int(entry.get("n", 1000))), arguments[name]
    data = sys.modules["torch.utils.data"]
    streams = isinstance(dataset, data.IterableDataset)
    rows = count + 1 if streams else len(dataset)
    if rows <= count:
        told = notes.answered().get("subset")
        if told is not None and told["took"]:
            return True, "already"
        return False, "the dataset has %d examples" % rows
    shorten = getattr(dataset, "take" if streams else "select", None)
    if shorten is None or not type(dataset).__module__.startswith("datasets."):
        part = part_of(dataset, count)
    else:
        part = shorten(count if streams else range(count))
    sampler = arguments.get("batch_sampler") or arguments.get("sampler")
    sampler = sampler.sampler if type(sampler) is data.BatchSampler else sampler
    if sampler is not None and not _goes_over(sampler, dataset, part, data):
        return False, "the DataLoader has a sampler of its own"
    arguments[name] = part
    return True, ("the first %d" % count if streams else "%d -> %d" % (rows, count)) + " examples"


def _goes_over(sampler, dataset, part, data):
    """Make a sampler of torch choose only from the part."""
    kind = type(sampler)
    if kind is data.DistributedSampler and sampler.dataset is dataset:
        names = ("num_replicas", "rank", "shuffle", "seed", "drop_last")
        kind.__init__(sampler, part, *(getattr(sampler, name) for name in names))
        return True
    if kind in (data.SequentialSampler, data.RandomSampler) and sampler.data_source is dataset:
        sampler.data_source = part
        return True
    return False


# Workers go first: the others look at how many are left.
_LOADER = {
    "num-workers-0": _no_workers,
    "num-workers-1": _one_worker,
    "spawn": _spawn,
    "pin-memory-off": _no_pinning,
    "persistent-workers-off": _no_persistence,
    "loader-timeout": _timeout,
    "subset": first_rows,
}
