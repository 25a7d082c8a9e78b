"""Which module each hook waits for, and the versions of its library that it is armed for.

Data, and how a version is read: it must import nothing of the libraries.
"""

import sys

# library -> first version its hooks are armed for, first version beyond, versions their tests were
# run with. The upper end is a next major version: what a hook wraps has changed with those.
_VERSIONS = {
    "torch": ((2, 1), (3, 0), ("2.13.0",)),
    "safetensors": ((0, 4), (1, 0), ("0.4.5", "0.8.0")),
    "transformers": ((4, 47), (6, 0), ("4.47.0", "5.23.0")),
    "lightning": ((2, 1), (3, 0), ("2.1.0", "2.6.6")),
    "pytorch_lightning": ((2, 0), (3, 0), ("2.0.0", "2.1.0", "2.6.6")),
    "accelerate": ((1, 1), (2, 0), ("1.1.1", "1.15.0")),
    "datasets": ((2, 21), (6, 0), ("2.21.0", "5.2.0")),
    "huggingface_hub": ((0, 26), (3, 0), ("0.26.5", "2.4.0")),
    "filelock": ((3, 12), (5, 0), ("3.16.1", "4.2.11")),
    "wandb": ((0, 18), (1, 0), ("0.18.7", "0.31.0")),
    "tqdm": ((4, 60), (5, 0), ("4.66.6", "4.70.1")),
    "keras": ((3, 0), (4, 0), ("3.15.1",)),
    "tensorflow": ((2, 16), (3, 0), ("2.21.0",)),
    "celery": ((5, 2), (6, 0), ("5.2.7", "5.7.0")),
    "python": ((3, 8), (3, 15), ("3.11.7",)),
}
_MODULES = {
    "torch": ("torch", "torch"),
    "torch.distributed.distributed_c10d": ("distributed", "torch"),
    "torch.distributed.elastic.multiprocessing.api": ("torchrun", "torch"),
    "torch._dynamo": ("torch:dynamo", "torch"),
    "torch.nn.parallel.distributed": ("distributed:parallel", "torch"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("distributed:parallel", "torch"),
    "torch.distributed.fsdp._fully_shard._fully_shard": ("distributed:parallel", "torch"),
    "torch.utils.tensorboard.writer": ("torch:tensorboard", "torch"),
    "safetensors.torch": ("huggingface:safetensors", "safetensors"),
    "transformers.trainer": ("transformers", "transformers"),
    "transformers.modeling_utils": ("huggingface:pretrained", "transformers"),
    "transformers.tokenization_utils_base": ("huggingface:pretrained", "transformers"),
    "transformers.models.auto.tokenization_auto": ("huggingface:auto_tokenizer", "transformers"),
    "lightning.pytorch": ("lightning", "lightning"),
    "pytorch_lightning": ("lightning:pytorch_lightning", "pytorch_lightning"),
    "accelerate.accelerator": ("accelerate", "accelerate"),
    "datasets.arrow_dataset": ("huggingface:datasets", "datasets"),
    "datasets.load": ("huggingface:datasets", "datasets"),
    "huggingface_hub.file_download": ("huggingface:hub", "huggingface_hub"),
    "huggingface_hub._snapshot_download": ("huggingface:hub", "huggingface_hub"),
    "torch.utils.file_baton": ("locks", "torch"),
    "filelock": ("locks", "filelock"),
    "wandb": ("wandb", "wandb"),
    # Not tqdm.std: while that is imported tqdm does not yet know its own version.
    "tqdm": ("tqdm", "tqdm"),
    "keras": ("keras", "keras"),
    "tensorflow": ("keras:tensorflow", "tensorflow"),
    "celery.signals": ("celery", "celery"),
    "celery.apps.worker": ("celery:celery_worker", "celery"),
    "argparse": ("argparse", "python"),
}
# module -> hook (its file, and its function where that is not arm), library, and its versions
HOOKS = {
    module: (hook, library, *_VERSIONS[library]) for module, (hook, library) in _MODULES.items()
}
# Their import is too short to be a place where a training may hang.
QUICK = (
    "argparse",
    "celery.signals",
    "celery.apps.worker",
    "filelock",
    "torch.utils.file_baton",
    "safetensors.torch",
    "tqdm",
)


def version_of(library):
    """The `__version__` of an imported library, None if it is not imported or has none."""
    if library == "python":
        return sys.version.split(" ")[0]
    return getattr(sys.modules.get(library), "__version__", None)


def coverage(name, version):
    """Whether the hook that waits for a module is armed for this version, and a note about it."""
    _, library, oldest, beyond, tested = HOOKS[name]
    numbers = version_numbers(version)
    if numbers is None or not oldest <= numbers < beyond:
        wanted = _text(oldest) + " to below " + _text(beyond)
        return False, "skipped: " + library + " " + str(version) + " is outside " + wanted
    if numbers in [version_numbers(one) for one in tested]:
        return True, "armed"
    return True, "armed; not tested with " + str(version)


def version_numbers(version):
    """The leading numbers of a version, None without any."""
    numbers = []
    for part in str(version).split("+")[0].split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers) or None


def _text(numbers):
    return ".".join([str(number) for number in numbers])
