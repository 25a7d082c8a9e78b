"""The first examples of a dataset in the place of all, for trials (subset).

It must leave the dataset itself as it is, and a loader whose sampler it does not know.
"""

import itertools
import sys

from watchdog_train.client import notes


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


def take(entry, arguments, name="dataset"):
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
    """Have a sampler of torch choose from the part only."""
    kind = type(sampler)
    if kind is data.DistributedSampler and sampler.dataset is dataset:
        names = ("num_replicas", "rank", "shuffle", "seed", "drop_last")
        kind.__init__(sampler, part, *(getattr(sampler, name) for name in names))
        return True
    if kind in (data.SequentialSampler, data.RandomSampler) and sampler.data_source is dataset:
        sampler.data_source = part
        return True
    return False
