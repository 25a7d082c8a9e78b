"""Settings of the Trainer of transformers, of Lightning's and of Accelerator: their own arguments.

It must refuse where it cannot be sure, and never leave half of a change: a batch without its
accumulation would be another training.
"""

import os
import sys
import weakref

from watchdog_train.client import notes, settings

# Arguments of Trainers that have been changed: a second Trainer with the same ones is left alone.
_changed: list = []


def trainer_arguments(original, trainer, args, kwargs):
    """The arguments of Trainer.__init__; its TrainingArguments are changed in place."""
    if not any(identifier in settings.wanted() for identifier in (*_TRAINER, "dataset-subset")):
        return args, kwargs
    try:
        bound = settings.bind(original, (trainer, *args), kwargs)
        given = bound.arguments.get("args")
        if given is not None and not _is_changed(given):
            _changed.append(weakref.ref(given))
            for identifier, change in _TRAINER.items():
                settings.attempted(identifier, change, given)
        settings.attempted("dataset-subset", _fewer_rows, bound.arguments)
        return bound.args[1:], bound.kwargs
    except Exception as error:
        notes.note("the arguments of a Trainer were left as they are: " + type(error).__name__)
        return args, kwargs


def trainer_begins(trainer):
    """train() has been called: callbacks that need an evaluation go with it."""
    if settings.parameters("no-eval") is None:
        return
    try:
        if str(getattr(trainer.args.eval_strategy, "value", "")) != "no":
            return
        handler = trainer.callback_handler
        kept = [one for one in handler.callbacks if type(one).__name__ != "EarlyStoppingCallback"]
        handler.callbacks[:] = kept
    except Exception as error:
        notes.note("no-eval: callbacks were left as they are: " + type(error).__name__)


def configuration_made(arguments):
    """A TrainingArguments, or one that derives from it, has checked its values."""
    settings.attempted("shorter-sequences", _shorter, arguments)


def lightning_arguments(kwargs):
    """The arguments of Lightning's Trainer, which takes them by name only."""
    if not any(identifier in settings.wanted() for identifier in _LIGHTNING):
        return kwargs
    changed = dict(kwargs)
    for identifier, change in _LIGHTNING.items():
        settings.attempted(identifier, change, changed)
    return changed


def accelerator_arguments(original, accelerator, args, kwargs):
    """The arguments of Accelerator.__init__."""
    if settings.parameters("bf16") is None:
        return args, kwargs
    try:
        bound = settings.bind(original, (accelerator, *args), kwargs)
        settings.attempted("bf16", _accelerator_bf16, bound.arguments)
        return bound.args[1:], bound.kwargs
    except Exception as error:
        settings.report("bf16", False, "arguments do not fit: " + type(error).__name__)
        return args, kwargs


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


def _smaller_evaluation(_, arguments):
    before = arguments.per_device_eval_batch_size
    arguments.per_device_eval_batch_size = max(1, before // 4)
    said = "evaluation %d -> %d" % (before, max(1, before // 4))
    if getattr(arguments, "eval_accumulation_steps", 0) is None:
        arguments.eval_accumulation_steps = 16
        said += ", predictions leave the device every 16 batches"
    return True, said


def _trainer_bf16(_, arguments):
    if arguments.bf16:
        return True, "already bf16"
    if not arguments.fp16:
        return False, "it does not train in fp16"
    if not _has_bf16():
        return False, "this device has no bf16"
    arguments.fp16, arguments.bf16 = False, True
    if hasattr(arguments, "mixed_precision"):
        arguments.mixed_precision = "bf16"
    # Where transformers 4 leaves it for its Accelerator.
    if os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16":
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    return True, "fp16 -> bf16"


def _has_bf16():
    torch = sys.modules["torch"]
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()


def _no_evaluation(_, arguments):
    before = arguments.eval_strategy
    if before.value == "no":
        return True, "already none"
    if getattr(arguments.save_strategy, "value", "") == "best":
        return False, "saves hang on the metric of the evaluation (save_strategy best)"
    if getattr(arguments.lr_scheduler_type, "value", "") == "reduce_lr_on_plateau":
        return False, "the learning rate hangs on the metric of the evaluation"
    arguments.eval_strategy = type(before)("no")
    arguments.load_best_model_at_end = False
    for name in ("eval_on_start", "do_eval"):
        if getattr(arguments, name, None):
            setattr(arguments, name, False)
    return True, "eval_strategy " + before.value + " -> no; no best model, no early stopping"


def _fewer_rows(entry, arguments):
    dataset = arguments.get("train_dataset")
    if dataset is None:
        return False, "there is no train_dataset"
    try:
        rows = len(dataset)
    except TypeError:
        return False, "the train_dataset has no length"
    kept = max(1, int(rows * float(entry.get("fraction", 0.1))))
    if hasattr(dataset, "select"):
        arguments["train_dataset"] = dataset.select(range(kept))
    else:
        subset = sys.modules["torch.utils.data"].Subset
        arguments["train_dataset"] = subset(dataset, range(kept))
    return True, "%d -> %d examples" % (rows, kept)


def _shorter(_, arguments):
    length = getattr(arguments, "max_length", None)
    if not isinstance(length, int) or length < 64:
        return False, "there is no max_length to halve"
    arguments.max_length = length // 2
    return True, "max_length %d -> %d" % (length, length // 2)


_TRAINER = {
    "batch-halve-accumulate": _halve,
    "eval-batch-small": _smaller_evaluation,
    "bf16": _trainer_bf16,
    "no-eval": _no_evaluation,
}


_IN_BF16 = {"16-mixed": "bf16-mixed", "16": "bf16-mixed", "16-true": "bf16-true"}


def _lightning_bf16(_, arguments):
    before = str(arguments.get("precision") or "32-true")
    if before.startswith("bf16"):
        return True, "already " + before
    if before not in _IN_BF16:
        return False, "it does not train in fp16"
    if not _has_bf16():
        return False, "this device has no bf16"
    arguments["precision"] = _IN_BF16[before]
    return True, before + " -> " + _IN_BF16[before]


def _no_validation(_, arguments):
    callbacks = arguments.get("callbacks")
    listed = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    kept = []
    for callback in listed:
        if type(callback).__name__ == "EarlyStopping" and not callback._check_on_train_epoch_end:
            continue
        if getattr(callback, "monitor", None) and type(callback).__name__ == "ModelCheckpoint":
            # Without its metric it would raise; without a monitor it keeps the newest.
            callback.monitor = None
        if callback is not None:
            kept.append(callback)
    arguments["callbacks"] = kept
    arguments["limit_val_batches"] = 0
    arguments["num_sanity_val_steps"] = 0
    return True, "no validation; checkpoints are the newest, no early stopping"


def _fewer_batches(entry, arguments):
    if arguments.get("limit_train_batches") not in (None, 1.0):
        return False, "limit_train_batches is set"
    fraction = float(entry.get("fraction", 0.1))
    arguments["limit_train_batches"] = fraction
    return True, "limit_train_batches " + str(fraction)


_LIGHTNING = {
    "bf16": _lightning_bf16,
    "no-eval": _no_validation,
    "dataset-subset": _fewer_batches,
}


def _accelerator_bf16(_, arguments):
    given = arguments.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    before = str(getattr(given, "value", given))
    if before == "bf16":
        return True, "already bf16"
    if before != "fp16":
        return False, "it does not train in fp16"
    if not _has_bf16():
        return False, "this device has no bf16"
    arguments["mixed_precision"] = "bf16"
    return True, "fp16 -> bf16"
