"""Settings of the Trainer of transformers: its batch.

It must refuse where it cannot be sure, and never leave half of a change: a batch without its
accumulation would be another training.
"""

import weakref

from watchdog_train.client import notes, settings

# Arguments of Trainers that have been changed: a second Trainer with the same ones is left alone.
_changed: list = []


def apply(original, trainer, args, kwargs):
    """Change the TrainingArguments among the arguments of Trainer.__init__, in place."""
    if settings.parameters("batch-halve-accumulate") is None:
        return
    try:
        given = settings.bind(original, (trainer, *args), kwargs).arguments.get("args")
        if given is not None and not _is_changed(given):
            _changed.append(weakref.ref(given))
            settings.attempted("batch-halve-accumulate", _halve, given)
    except Exception as error:
        notes.note("the arguments of a Trainer were left as they are: " + type(error).__name__)


def _is_changed(arguments):
    return any(known() is arguments for known in _changed)


def _halve(_, arguments):
    size, accumulated = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    for name, why in (
        ("deepspeed", "DeepSpeed has a batch size of its own"),
        ("auto_find_batch_size", "auto_find_batch_size changes it, too"),
        ("num_generations", "groups of generations have a fixed size"),
    ):
        if getattr(arguments, name, None):
            return False, why
    if getattr(getattr(arguments, "accelerator_config", None), "split_batches", False):
        return False, "split_batches: the batch is that of all ranks"
    if size < 2 or size % 2:
        return False, "a batch of " + str(size) + " cannot be halved"
    arguments.per_device_train_batch_size = size // 2
    arguments.gradient_accumulation_steps = accumulated * 2
    now = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    if now != size * accumulated:
        arguments.per_device_train_batch_size = size
        arguments.gradient_accumulation_steps = accumulated
        return False, "batch times accumulation did not stay the same"
    evaluated = arguments.per_device_eval_batch_size
    arguments.per_device_eval_batch_size = max(1, evaluated // 2)
    return True, "batch %d -> %d, accumulation %d -> %d, evaluation %d -> %d" % (
        size, size // 2, accumulated, accumulated * 2, evaluated, max(1, evaluated // 2),
    )  # fmt: skip
