"""Settings that only a trial of `wtrain bisect` asks for: a single worker, or a few examples."""

import sys


def _one_worker(_, arguments):
    before = int(arguments.get("num_workers") or 0)
    if before == 0:
        return False, "the DataLoader has no workers"
    arguments["num_workers"] = 1
    return True, str(before) + " -> 1 workers"


def _fewer_examples(entry, arguments):
    """The first examples only, and a sampler over them where it is one of torch's own."""
    wanted, dataset = int(entry["examples"]), arguments.get("dataset")
    data = sys.modules["torch.utils.data"]
    if isinstance(dataset, data.IterableDataset) or not hasattr(dataset, "__len__"):
        return False, "the dataset has no length"
    before = len(dataset)
    if before <= wanted:
        return True, "has " + str(before) + " examples"
    if arguments.get("batch_sampler") is not None:
        return False, "the DataLoader has a batch_sampler"
    subset = data.Subset(dataset, range(wanted))
    sampler = arguments.get("sampler")
    if sampler is not None:
        if type(sampler) is data.RandomSampler:
            arguments["sampler"] = data.RandomSampler(subset, generator=sampler.generator)
        elif type(sampler) is data.SequentialSampler:
            arguments["sampler"] = data.SequentialSampler(subset)
        elif type(sampler) is data.DistributedSampler:
            arguments["sampler"] = data.DistributedSampler(
                subset, sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed
            )
        else:
            return False, "the DataLoader has a sampler of its own"
    arguments["dataset"] = subset
    return True, str(before) + " -> " + str(wanted) + " examples"


LOADER = {
    "trial-workers-1": _one_worker,
    "trial-examples-2": _fewer_examples,
    "trial-examples-100": _fewer_examples,
    "trial-examples-1000": _fewer_examples,
}
