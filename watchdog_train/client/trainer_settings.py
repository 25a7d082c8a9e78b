"""Settings of the Trainers of transformers and of Lightning: batch, evaluation, examples.

It must refuse where it cannot be sure, and never leave half of a change: a batch without its
accumulation would be another training.
"""

import weakref

from watchdog_train.client import settings
from watchdog_train.client.loader_settings import first_rows

# Arguments of Trainers that have been changed: a second Trainer with the same ones is left alone.
_changed: list = []


def apply(original):
    """Trainer.__init__ with the plan's settings; its TrainingArguments are changed in place."""
    if settings.wanted().keys().isdisjoint((*_ARGUMENTS, "subset")):
        return original
    return settings.with_changes(original, _change, "a Trainer")


def _change(arguments):
    given = arguments.get("args")
    if given is not None and not any(known() is given for known in _changed):
        _changed.append(weakref.ref(given))
        for identifier, change in _ARGUMENTS.items():
            settings.attempted(identifier, change, given)
    if arguments.get("train_dataset") is not None:
        settings.attempted("subset", first_rows, arguments, "train_dataset")


def without_evaluation(arguments):
    """Whether no-eval is in effect: then nothing may wait for an evaluation."""
    asked = settings.parameters("no-eval") is not None
    return asked and getattr(arguments.eval_strategy, "value", "") == "no"


def _is_a(found, name):
    return any(kind.__name__ == name for kind in type(found).__mro__)


def no_early_stop(callbacks):
    """Callbacks that stop by a metric of the evaluation refuse to begin without one."""
    callbacks[:] = [one for one in callbacks if not _is_a(one, "EarlyStoppingCallback")]


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


def _no_evaluation(_, arguments):
    before = arguments.eval_strategy
    if before.value == "no":
        return False, "it does not evaluate in between"
    for name, value in (("save_strategy", "best"), ("lr_scheduler_type", "reduce_lr_on_plateau")):
        if getattr(getattr(arguments, name), "value", "") == value:
            return False, name + " " + value + " hangs on a metric of the evaluation"
    arguments.eval_strategy = type(before)("no")
    arguments.load_best_model_at_end, arguments.metric_for_best_model = False, None
    arguments.eval_on_start = False
    return True, "eval_strategy " + before.value + " -> no; no best model, no early stopping"


def _evaluation_batch(_, arguments):
    most, before = arguments.per_device_train_batch_size, arguments.per_device_eval_batch_size
    if before <= most:
        return False, "the evaluation's batch of %d is no larger than the training's" % before
    arguments.per_device_eval_batch_size = most
    return True, "evaluation %d -> %d" % (before, most)


def _no_safetensors(_, arguments):
    if not hasattr(arguments, "save_safetensors"):
        return False, "this Trainer saves nothing else"
    arguments.save_safetensors = False
    return True, "save_safetensors=False"


# The training's batch goes first: the evaluation's follows it.
_ARGUMENTS = {
    "safetensors-off": _no_safetensors,
    "batch-halve-accumulate": _halve,
    "eval-batch": _evaluation_batch,
    "no-eval": _no_evaluation,
}


def fit_begins(trainer):
    """Lightning's fit() was called; returns what to restore when it is over."""
    if settings.parameters("no-eval") is None or not hasattr(trainer, "limit_val_batches"):
        return {}
    before = {
        name: getattr(trainer, name) for name in ("limit_val_batches", "num_sanity_val_steps")
    }
    trainer.limit_val_batches = trainer.num_sanity_val_steps = 0
    return before


def no_validation(_, trainer):
    """All callbacks and schedulers of a fit are there: none may wait for a validation metric."""
    if not trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined():
        return False, "it does not validate"
    for callback in trainer.callbacks:
        if _is_a(callback, "ModelCheckpoint"):
            if callback.monitor is not None:
                # It saves the newest now, in the place of the last; the best so far stays.
                callback.monitor, callback.best_model_path = None, ""
                callback.save_top_k = min(callback.save_top_k, 1)
            callback._save_on_train_epoch_end = True
        elif _is_a(callback, "EarlyStopping"):
            callback.strict = False
    for scheduler in trainer.lr_scheduler_configs:
        scheduler.strict = False
    return True, "no validation; checkpoints are the newest, no early stopping by a validation"
