"""The in-process part of an attempt's plan, applied before objects are made, and reported back.

It must change only what the plan names, and where a change would not be transparent it must
leave things as they are and say why. An argument that does not fit goes through untouched, so
that a mistake of the user's raises what it always raised.
"""

import sys

from watchdog_train.client import notes, phases, slot

_WORKER_ARGUMENTS = (
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
)

_wanted = None  # type: dict | None


def wanted():
    """The settings of the plan by id: (bit, parameters)."""
    global _wanted
    if _wanted is None:
        _wanted = {}
        try:
            if slot.supervised and slot.settings_json:
                import json

                for bit, entry in enumerate(json.loads(slot.settings_json)[:64]):
                    _wanted[str(entry["id"])] = (bit, entry)
        except Exception as error:
            notes.note("the settings of the plan cannot be read: " + type(error).__name__)
    return _wanted


def report(identifier, took, why):
    """Tell what has become of a setting."""
    found = wanted().get(identifier)
    if found is not None:
        notes.setting(identifier, found[0], took, why)


def apply(torch):
    """Apply what concerns torch; the hook of datasets asks for its own part."""
    for identifier, act in _AT_ONCE.items():
        if identifier in wanted():
            try:
                took, why = act(torch)
            except Exception as error:
                took, why = False, type(error).__name__ + ": " + str(error)[:200]
            report(identifier, took, why)
    if any(identifier in wanted() for identifier in _LOADER):
        _patch_loader()


def without_processes(original, args, kwargs):
    """The arguments of Dataset.map or filter, without num_proc if the plan says so."""
    try:
        if "num-proc-none" not in wanted():
            return args, kwargs
        bound = _bind(original, args, kwargs)
        before = bound.arguments.get("num_proc")
        if before is None:
            # Dataset.filter calls map in turn: what has been said stays.
            if "num-proc-none" not in notes.answered():
                report("num-proc-none", True, "num_proc was not set")
            return args, kwargs
        bound.arguments["num_proc"] = None
        report("num-proc-none", True, "num_proc " + str(before) + " -> None")
        return bound.args, bound.kwargs
    except Exception as error:
        report("num-proc-none", False, "arguments do not fit: " + type(error).__name__)
        return args, kwargs


def _omp_1(torch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return True, str(before) + " -> 1 threads"


def _file_system_sharing(torch):
    import torch.multiprocessing as shared

    if "file_system" not in shared.get_all_sharing_strategies():
        return False, "this system has no sharing strategy file_system"
    before = shared.get_sharing_strategy()
    shared.set_sharing_strategy("file_system")
    return True, before + " -> file_system"


def _cpu_not_mps(torch):
    """Whoever asks for MPS hears that there is none; a device that is named outright stays."""
    mps = torch.backends.mps
    before = mps.is_available
    was = bool(before())

    def is_available():
        return False

    mps.is_available = phases.like(is_available, before)
    if not was:
        return True, "there is no MPS here"
    return True, "MPS is said not to be available; a device named outright stays"


_AT_ONCE = {
    "omp-1": _omp_1,
    "file-system-sharing": _file_system_sharing,
    "cpu-not-mps": _cpu_not_mps,
}


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
    bound = _bind(original, (loader, *args), kwargs)
    arguments = bound.arguments
    for identifier, change in _LOADER.items():
        if identifier in wanted():
            took, why = change(arguments, wanted()[identifier][1])
            report(identifier, took, why)
    return bound.args[1:], bound.kwargs


def _bind(function, args, kwargs):
    import inspect

    return inspect.signature(function).bind(*args, **kwargs)


def _workers(arguments):
    return int(arguments.get("num_workers") or 0)


_SEEDING_FRAMEWORKS = (
    "transformers",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
)


def _no_workers(arguments, _):
    before = _workers(arguments)
    if before == 0:
        return True, "already 0 workers"
    data = sys.modules["torch.utils.data.dataset"]
    if isinstance(arguments.get("dataset"), data.IterableDataset):
        return False, "an IterableDataset gives other batches without workers"
    if not _only_seeds(arguments.get("worker_init_fn")):
        return False, "the DataLoader has a worker_init_fn"
    arguments["num_workers"] = 0
    for name in _WORKER_ARGUMENTS:
        arguments.pop(name, None)
    return True, str(before) + " -> 0 workers"


def _only_seeds(init):
    """Whether a worker_init_fn may be left out: none, or one by which a framework seeds workers.

    Trainer and Lightning set theirs always; without workers there is nothing to seed. Any other
    may fill the dataset, and fails in the main process, where get_worker_info() is None.
    """
    init = getattr(init, "func", init)
    module = getattr(init, "__module__", None) or ""
    return init is None or module.split(".", 1)[0] in _SEEDING_FRAMEWORKS


def _spawn(arguments, _):
    if _workers(arguments) == 0:
        return True, "no workers, nothing to start"
    before = arguments.get("multiprocessing_context")
    if before is not None:
        return False, "the DataLoader has a multiprocessing_context of its own"
    arguments["multiprocessing_context"] = "spawn"
    return True, "workers are spawned"


def _no_pinning(arguments, _):
    before = bool(arguments.get("pin_memory"))
    arguments["pin_memory"] = False
    return True, "pin_memory " + str(before) + " -> False"


def _no_persistence(arguments, _):
    before = bool(arguments.get("persistent_workers"))
    arguments.pop("persistent_workers", None)
    return True, "persistent_workers " + str(before) + " -> False"


def _timeout(arguments, parameters):
    if _workers(arguments) == 0:
        return False, "no workers, a timeout would be an error"
    if arguments.get("timeout"):
        return False, "the DataLoader has a timeout of its own"
    seconds = float(parameters.get("seconds", 600))
    if not seconds > 0:
        return False, "seconds must be positive"
    arguments["timeout"] = seconds
    return True, "timeout 0 -> " + str(seconds) + " s"


# Workers go first: the others look at how many are left.
def _one_worker(arguments, _):
    before = _workers(arguments)
    if before == 0:
        return False, "the DataLoader has no workers"
    arguments["num_workers"] = 1
    return True, str(before) + " -> 1 workers"


def _fewer_examples(arguments, entry):
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


_LOADER = {
    "trial-workers-1": _one_worker,
    "trial-examples-2": _fewer_examples,
    "trial-examples-100": _fewer_examples,
    "trial-examples-1000": _fewer_examples,
    "num-workers-0": _no_workers,
    "spawn": _spawn,
    "pin-memory-off": _no_pinning,
    "persistent-workers-off": _no_persistence,
    "loader-timeout": _timeout,
}
