"""Progress of a Lightning training: step, total, loss, samples; requests after a batch.

It must not look into a tensor (that waits for the device), and must never throw into a fit.
"""

import math

from watchdog_train.client import control, heartbeat, milestones, notes, phases, resume, slot
from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client.hooks import lightning_checkpoints

_LOOK_EVERY_NS = 1000000000
_now_ns = slot.now_ns
_STEP = L.W_FRAMEWORK_STEP
_LAST = L.W_LAST_BEAT_NS
_PHASE = L.W_PHASE

# Packages whose Trainer is hooked: the explicit callback leaves those alone.
armed: set = set()


class _Fit:
    __slots__ = (
        "automatic", "batches", "looked_at", "looked_batch", "looked_entries", "step", "steps",
    )  # fmt: skip

    def __init__(self, trainer):
        # The counters behind trainer.global_step, which is a chain of nine properties.
        loop = trainer.fit_loop.epoch_loop
        self.batches = loop.batch_progress.total
        self.automatic = trainer.lightning_module.automatic_optimization
        progress = loop.automatic_optimization.optim_progress.optimizer.step
        if not self.automatic:
            progress = loop.manual_optimization.optim_step_progress
        self.steps = progress.total
        self.step = self.steps.completed
        self.looked_at = self.looked_batch = self.looked_entries = 0


_fit = None  # type: _Fit | None
# Open between the call of fit() and its first batch.
_preparing: list = []


def counted(trainer):
    """fit() has been called: one training more in this process."""
    words = slot.words
    words[L.W_TRAIN_ORDINAL] += 1
    # Of the fit before; this one's are known when it has loaded its checkpoint.
    words[_STEP] = words[L.W_FIRST_STEP] = words[L.W_TOTAL_STEPS] = 0
    _preparing[:] = [milestones.begin("prepare training")]
    # Read by processes that ddp_spawn starts with a copy of this Trainer.
    trainer._wtrain_ordinal = words[L.W_TRAIN_ORDINAL]


def begins(trainer):
    """The checkpoint is loaded and the data is set up: the first batch comes next."""
    global _fit
    words = slot.words
    milestones.end(_preparing.pop() if _preparing else None)
    if not words[L.W_TRAIN_ORDINAL]:
        words[L.W_TRAIN_ORDINAL] = getattr(trainer, "_wtrain_ordinal", 1)
    lightning_checkpoints.home_of(trainer)
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", None):
            notes.output_dir(callback.dirpath)
    words[L.W_TOTAL_STEPS] = total_steps(trainer)
    if resume.is_the_one(trainer.ckpt_path):
        words[L.W_RESUMED_STEP] = int(trainer.global_step) + 1
    if trainer.num_nodes == 1:
        control.all_ranks_are_here()
    control.listens()
    _fit = _Fit(trainer)
    milestones.training_begins()


def total_steps(trainer):
    """The step at which the training ends, 0 if unknown."""
    limits = []
    if trainer.max_steps >= 0:
        limits.append(trainer.max_steps)
    epochs, batches = trainer.max_epochs, trainer.num_training_batches
    steady = not any(
        type(callback).__name__ == "GradientAccumulationScheduler" for callback in trainer.callbacks
    )
    # By hand a batch may have any number of steps, and several optimizers count each.
    countable = trainer.lightning_module.automatic_optimization and steady
    if countable and epochs is not None and epochs >= 0 and batches != math.inf:
        limits.append(epochs * math.ceil(batches / trainer.accumulate_grad_batches))
    return int(min(limits)) if limits else 0


def batch_ends(trainer):
    words = slot.words
    fit = _fit
    if fit is None:
        return
    step, now = fit.steps.completed, _now_ns()
    words[_STEP] = step + 1
    words[_LAST] = now
    if not words[L.W_FIRST_STEP] and step != fit.step:
        # Not the batches before it, whose gradients were accumulated at the checkpoint's step.
        resume.first_step(step)
        words[L.W_FIRST_STEP] = step + 1
        if words[_PHASE] == L.PHASE_FIRST_STEP:
            milestones.first_step_done()
    heartbeat.step_done()
    if now - fit.looked_at > _LOOK_EVERY_NS:
        _look(trainer, fit, words, now)
    # Not between two steps: gradients that are being accumulated are in no checkpoint.
    if step != fit.step or not fit.automatic:
        fit.step = step
        _requests(trainer, fit.batches.ready)


@slot.harmless
def nobody_listens():
    """The fit is over, one way or another: from here on requests are not read."""
    slot.words[L.W_CAN_BE_ASKED] = 0


def logged(metrics, *_args, **_kwargs):
    """Metrics have been made numbers for a logger or the progress bar."""
    loss = _loss_of(metrics)
    if loss is not None:
        milestones.loss_seen()
        slot.words[L.W_LOSS] = slot.float_bits(loss)


def _requests(trainer, batch):
    # By batches, not by steps: a step that is skipped or not counted must not part the ranks.
    if control.save_due(batch):
        lightning_checkpoints.save(trainer)
    answered = slot.words[L.W_STOP_ANSWERED]
    if control.stop_due(batch):
        if slot.words[L.W_STOP_ANSWERED] != answered:
            # Ctrl-C promises a save; a fit that comes after it only ends.
            lightning_checkpoints.save(trainer)
            lightning_checkpoints.nothing_more_at_this_step(trainer)
        _stop_after_this_batch(trainer)


def _stop_after_this_batch(trainer):
    """Set should_stop when the batch is over: set earlier it starts a complete validation first."""
    loop = trainer.fit_loop.epoch_loop
    # The user's wish to stop is newer than the one for a least number of epochs.
    trainer.fit_loop.min_epochs = loop.min_steps = None
    original = loop.on_advance_end

    def on_advance_end(*args, **kwargs):
        del loop.on_advance_end
        result = original(*args, **kwargs)
        trainer.should_stop = True
        return result

    loop.on_advance_end = on_advance_end


def _look(trainer, fit, words, now):
    """Once a second: the loss of the progress bar, and the pace of the batches."""
    logged(trainer._logger_connector._progress_bar_metrics)
    batch, entries = fit.batches.ready, words[L.W_PHASE_ENTRIES]
    size = _batch_size(trainer)
    # A save or a validation in between is no part of the pace.
    if size and fit.looked_at and entries == fit.looked_entries:
        seconds = (now - fit.looked_at) / 1e9
        samples = (batch - fit.looked_batch) * size * trainer.world_size
        words[L.W_SAMPLES_PER_S] = slot.float_bits(samples / seconds)
    fit.looked_at, fit.looked_batch, fit.looked_entries = now, batch, entries


def _batch_size(trainer):
    """Samples in a batch of one rank, None if unknown."""
    loader = trainer.train_dataloader
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _loss_of(metrics):
    """The training loss among logged numbers; names are the user's, the likeliest one counts."""
    best = None
    for name, value in metrics.items():
        if type(value) not in (float, int) or not isinstance(name, str):
            continue
        words = name.lower()
        if "loss" not in words or any(part in words for part in ("val", "test", "eval")):
            continue
        rank = (words not in ("loss", "loss_step"), "train" not in words, "epoch" in words, words)
        if best is None or rank < best[0]:
            best = (rank, value)
    return None if best is None else float(best[1])


def make_callback(base):
    """A subclass of the Callback of lightning.pytorch or pytorch_lightning.

    For a Trainer that the hook does not know. It does nothing where the hook is at work, and is
    pickled as the plain base class that does nothing.
    """

    def tell(act, *arguments):
        if not any(base.__module__.startswith(name + ".") for name in armed):
            phases.guarded(act, *arguments)

    class WatchdogCallback(base):  # type: ignore[misc, valid-type]
        """Reports progress to wtrain and acts on its requests; does nothing outside its runs."""

        def __init__(self):
            super().__init__()
            self._entered = []

        def __reduce__(self):
            return (base, ())

        def setup(self, trainer, pl_module, stage):
            if stage == "fit":
                tell(_fit_called, trainer)

        def on_train_start(self, trainer, pl_module):
            tell(begins, trainer)

        def on_train_batch_end(self, trainer, *args, **kwargs):
            tell(batch_ends, trainer)

        def on_train_end(self, trainer, pl_module):
            tell(milestones.training_finished)

        def on_exception(self, trainer, pl_module, exception):
            tell(nobody_listens)

        def on_validation_start(self, trainer, pl_module):
            tell(_evaluation_starts, self._entered)

        def on_validation_end(self, trainer, pl_module):
            tell(_evaluation_ends, self._entered)

        on_test_start = on_predict_start = on_validation_start
        on_test_end = on_predict_end = on_validation_end

    return WatchdogCallback


def _fit_called(trainer):
    if slot.words[L.W_PHASE] == L.PHASE_FINISHING:
        phases.set_phase(L.PHASE_STARTUP)
    counted(trainer)


def _evaluation_starts(entered):
    entered.append(phases.enter(L.PHASE_EVAL))


def _evaluation_ends(entered):
    if entered:
        phases.leave(entered.pop())
