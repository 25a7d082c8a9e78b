"""The explicit callback of Lightning, for a Trainer that the hook does not know.

It must keep still where the hook is at work, must not raise into the Trainer, and is pickled as
the plain base class that does nothing.
"""

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import phases, slot
from watchdog_train.client.hooks import lightning_steps


def make(base):
    """A subclass of the Callback of lightning.pytorch or pytorch_lightning."""

    def tell(act, *arguments):
        if not any(base.__module__.startswith(name + ".") for name in lightning_steps.armed):
            lightning_steps.guarded(act, *arguments)

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
            tell(lightning_steps.begins, trainer)

        def on_train_batch_end(self, trainer, *args, **kwargs):
            tell(lightning_steps.batch_ends, trainer)

        def on_train_end(self, trainer, pl_module):
            tell(_train_ends)

        def on_exception(self, trainer, pl_module, exception):
            tell(lightning_steps.nobody_listens)

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
    lightning_steps.counted(trainer)


def _train_ends():
    lightning_steps.nobody_listens()
    lightning_steps.finished()


def _evaluation_starts(entered):
    entered.append(phases.enter(L.PHASE_EVAL))


def _evaluation_ends(entered):
    if entered:
        phases.leave(entered.pop())
