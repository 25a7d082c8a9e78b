"""The callback that listens to a Hugging Face Trainer and hands it the supervisor's requests.

It must not raise into the Trainer, and is pickled as the plain base class that does nothing.
"""

import time

from watchdog_train.client import (
    control,
    first,
    heartbeat,
    milestones,
    notes,
    resume,
    slot,
    trainer_settings,
)
from watchdog_train.client import layout as L  # noqa: N812

_last_log = [0.0, 0]
# Open between the call of train() and the callback's first word.
_preparing: list = []


def preparing():
    """train() has been called."""
    del _preparing[:]
    _preparing.append(milestones.begin("prepare training"))


def make(base):
    """A subclass of transformers.TrainerCallback."""

    class WatchdogCallback(base):  # type: ignore[misc, valid-type]
        """Reports progress to wtrain; does nothing outside a supervised run."""

        def __reduce__(self):
            return (base, ())

        def on_train_begin(self, args, state, control, **kwargs):
            _guarded(_train_begins, args, state)

        def on_step_end(self, args, state, control, **kwargs):
            _guarded(_step_ends, state, control)

        def on_log(self, args, state, control, logs=None, **kwargs):
            _guarded(_logged, args, state, logs)

        def on_train_end(self, args, state, control, **kwargs):
            _guarded(milestones.training_finished)

    return WatchdogCallback


def _guarded(act, *arguments):
    try:
        if slot.supervised:
            act(*arguments)
    except Exception as error:
        notes.note("the Trainer callback failed: " + type(error).__name__)


def _train_begins(args, state):
    words = slot.words
    milestones.end(_preparing.pop() if _preparing else None)
    first.training_begins()
    # Of the training before, as far as there was one: this one has not made a step.
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
        first.step_done()
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
        first.loss_seen()
        words[L.W_LOSS] = slot.float_bits(float(logs["loss"]))
        seconds, steps = now - _last_log[0], step - _last_log[1]
        if seconds > 0 and steps > 0:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            words[L.W_SAMPLES_PER_S] = slot.float_bits(steps * batch / seconds)
        _last_log[:] = [now, step]
    words[L.W_LAST_BEAT_NS] = slot.now_ns()
