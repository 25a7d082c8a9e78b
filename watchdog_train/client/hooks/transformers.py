"""Progress of the Hugging Face Trainer, its saves, resuming, and requests at the end of a step.

It must not raise into the Trainer, never override a value that the user has given, and resume only
the training that the checkpoint came from. Its callback is pickled as the plain base class that
does nothing.
"""

import inspect
import os
import time

from watchdog_train.client import (
    control,
    heartbeat,
    milestones,
    notes,
    phases,
    resume,
    saves,
    settings,
    slot,
    trainer_settings,
)
from watchdog_train.client import layout as L  # noqa: N812

# Time and step of the newest log.
_last_log = [0.0, 0]
# Open between the call of train() and the callback's first word.
_preparing: list = []


def arm(module):
    callback = make_callback(module.TrainerCallback)
    wraps = {
        "__init__": lambda original: _init(trainer_settings.apply(original), callback),
        "_save_checkpoint": _save_checkpoint,
        "evaluate": lambda original: phases.around(L.PHASE_EVAL, original),
        "predict": lambda original: phases.around(L.PHASE_EVAL, original),
        "train": _train,
    }
    try:
        notes.arm_each(lambda name: phases.replace(module.Trainer, name, wraps[name]), wraps)
    finally:
        settings.prepare("cpu", "cpu_only", "of_transformers", module.TrainingArguments)


def _init(original, callback):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        try:
            notes.output_dir(self.args.output_dir)
            # After a finished training another one is being prepared: no longer its end.
            if slot.words[L.W_PHASE] == L.PHASE_FINISHING:
                phases.set_phase(L.PHASE_STARTUP)
            mine = [c for c in self.callback_handler.callbacks if isinstance(c, callback)]
            if not mine:
                self.callback_handler.callbacks.append(callback())
        except Exception as error:
            notes.note("a Trainer is not watched: " + type(error).__name__)

    return milestones.around("build Trainer", phases.like(__init__, original))


def _save_checkpoint(original):
    names = inspect.signature(original)

    def record(_result, trainer, *args, **kwargs):
        if not trainer.args.should_save:
            return
        bound = names.bind(trainer, *args, **kwargs)
        step = int(trainer.state.global_step)
        base = trainer._get_output_dir(trial=bound.arguments.get("trial"))
        output_dir = os.path.abspath(trainer.args.output_dir)
        saves.record_directory(
            os.path.join(base, "checkpoint-" + str(step)), "hf", output_dir, step
        )

    return saves.of_directory(original, record)


def _train(original):
    def wrapper(self, *args, **kwargs):
        args, kwargs = _begin(self, original, args, kwargs)
        result = original(self, *args, **kwargs)
        phases.set_phase(L.PHASE_FINISHING)
        return result

    return phases.like(wrapper, original)


def _begin(trainer, original, args, kwargs):
    if not slot.supervised:
        return args, kwargs
    ordinal = 0
    replaced = args, kwargs
    try:
        ordinal = slot.words[L.W_TRAIN_ORDINAL] + 1
        _preparing[:] = [milestones.begin("prepare training")]
        replaced = _resuming(trainer, original, args, kwargs, ordinal)
        if trainer_settings.without_evaluation(trainer.args):
            trainer_settings.no_early_stop(trainer.callback_handler.callbacks)
    except Exception as error:
        notes.note("a training was not prepared: " + type(error).__name__)
    # Steps of the training before must not be taken for steps of this one.
    slot.words[L.W_FRAMEWORK_STEP] = slot.words[L.W_FIRST_STEP] = 0
    # Last: a reader that sees this number must find what the training has resumed from.
    slot.words[L.W_TRAIN_ORDINAL] = ordinal
    return replaced


def _resuming(trainer, original, args, kwargs, ordinal):
    bound = inspect.signature(original).bind(trainer, *args, **kwargs)
    arguments = bound.arguments
    if arguments.get("trial") is not None:
        return args, kwargs
    given = arguments.get("resume_from_checkpoint")
    path = resume.checkpoint_for("hf", trainer.args.output_dir, ordinal, given, _signature(trainer))
    if path is None:
        return args, kwargs
    arguments["resume_from_checkpoint"] = path
    replaced = bound.args[1:], bound.kwargs
    resume.injected()
    return replaced


def _signature(trainer):
    """The identity of a training: two tasks may write into one directory one after the other.

    None of it may change with a setting of ours, such as a smaller batch.
    """
    import zlib

    try:
        arguments, model = trainer.args, trainer.model
        parts: list = [type(trainer).__name__, type(model).__name__]
        parts += [arguments.seed, arguments.learning_rate, arguments.num_train_epochs]
        parts.append(arguments.max_steps)
        if model is not None:
            parts += [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        try:
            parts.append(len(trainer.train_dataset))
        except TypeError:
            parts.append("stream")
        return "%08x" % zlib.crc32(repr(parts).encode("utf-8", "replace"))
    except Exception:
        return None


def make_callback(base):

    class WatchdogCallback(base):  # type: ignore[misc, valid-type]
        """Reports progress to wtrain; does nothing outside a supervised run."""

        def __reduce__(self):
            return (base, ())

        def on_train_begin(self, args, state, control, **kwargs):
            phases.guarded(_train_begins, args, state)

        def on_step_end(self, args, state, control, **kwargs):
            phases.guarded(_step_ends, state, control)

        def on_log(self, args, state, control, logs=None, **kwargs):
            phases.guarded(_logged, args, state, logs)

        def on_train_end(self, args, state, control, **kwargs):
            phases.guarded(milestones.training_finished)

    return WatchdogCallback


def _train_begins(args, state):
    words = slot.words
    milestones.end(_preparing.pop() if _preparing else None)
    milestones.training_begins()
    # Of the training before, if there was one: this one has not made a step.
    words[L.W_FRAMEWORK_STEP] = words[L.W_FIRST_STEP] = 0
    words[L.W_TOTAL_STEPS] = max(0, int(state.max_steps))
    _last_log[:] = [time.monotonic(), int(state.global_step)]
    control.listens()
    if trainer_settings.without_evaluation(args):
        state.best_model_checkpoint = None  # at the end it would push the newest out


def _step_ends(state, wishes):
    words = slot.words
    step = int(state.global_step)
    if not words[L.W_FIRST_STEP]:
        # Before the others: who reads a step must find where the training began.
        resume.first_step(step)
        words[L.W_FIRST_STEP] = step + 1
    words[L.W_FRAMEWORK_STEP] = step + 1
    words[L.W_LAST_BEAT_NS] = slot.now_ns()
    if words[L.W_PHASE] == L.PHASE_FIRST_STEP:
        milestones.first_step_done()
    heartbeat.step_done()
    if control.save_due(step):
        wishes.should_save = True
    if control.stop_due(step):
        # Ctrl-C promises a save; without it the newest steps would be lost.
        wishes.should_save = True
        wishes.should_training_stop = True


def _logged(args, state, logs):
    words = slot.words
    logs = logs or {}
    step, now = int(state.global_step), time.monotonic()
    if "loss" in logs:
        milestones.loss_seen()
        words[L.W_LOSS] = slot.float_bits(float(logs["loss"]))
        seconds, steps = now - _last_log[0], step - _last_log[1]
        if seconds > 0 and steps > 0:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            words[L.W_SAMPLES_PER_S] = slot.float_bits(steps * batch / seconds)
        _last_log[:] = [now, step]
    words[L.W_LAST_BEAT_NS] = slot.now_ns()
