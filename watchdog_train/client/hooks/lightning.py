"""Lightning's Trainer: progress, phases, saves, resuming, and requests at the end of a batch.

It adds no callback: Lightning asks each one many times a batch, which costs more than all our
hooks may. It must never override a value that the user has given, and must resume only the
training that the checkpoint came from.
"""

import inspect
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import (
    milestones,
    notes,
    phases,
    resume,
    saves,
    settings,
    slot,
    trainer_settings,
)
from watchdog_train.client.hooks import lightning_checkpoints, lightning_steps


def arm(module):
    name = module.__name__
    try:
        notes.arm_each(lambda part: part(name), (_trainer, _loops, _metrics, _files))
    finally:
        settings.prepare("cpu", "cpu_only", "of_lightning", sys.modules[name].Trainer)
        strategy = sys.modules[name + ".strategies"].Strategy
        settings.prepare("skip-bad-batches", "bad_batches", "of_lightning", strategy)
        lightning_steps.armed.add(name)


pytorch_lightning = arm


def _trainer(name):
    trainer = sys.modules[name].Trainer
    phases.replacing(trainer, "__init__")(_init)
    milestones.around_method(trainer, "__init__", "build Trainer")

    @phases.replacing(trainer, "fit")
    def fit(original, self, *args, **kwargs):
        args, kwargs = _begin(self, original, name, args, kwargs)
        before = trainer_settings.fit_begins(self)
        try:
            result = original(self, *args, **kwargs)
        finally:
            lightning_steps.nobody_listens()
            self.__dict__.update(before)
        phases.guarded(milestones.training_finished)
        return result

    trainer.save_checkpoint = saves.of_directory(trainer.save_checkpoint)


def _loops(name):
    loops = sys.modules[name + ".loops"]
    milestones.around_method(sys.modules[name].Trainer, "_run_sanity_check", "sanity check")
    loops._FitLoop.on_run_start = phases.after(loops._FitLoop.on_run_start, _run_starts)
    for loop in (loops._EvaluationLoop, loops._PredictionLoop):
        loop.run = phases.around(L.PHASE_EVAL, loop.run)


def _metrics(name):
    module = sys.modules[name + ".trainer.connectors.logger_connector.logger_connector"]
    training = sys.modules[name + ".trainer.states"].RunningStage.TRAINING
    connector = module._LoggerConnector
    connector.on_batch_end = _batch_end(connector.on_batch_end, training)
    convert = "convert_tensors_to_scalars"
    setattr(module, convert, phases.after(getattr(module, convert), lightning_steps.logged))


def _files(name):
    fabric = "lightning_fabric" if name == "pytorch_lightning" else "lightning.fabric"
    plugin = sys.modules[fabric + ".plugins.io.torch_io"].TorchCheckpointIO
    plugin.save_checkpoint = phases.after(plugin.save_checkpoint, lightning_checkpoints.written)


def _init(original, trainer, *args, **kwargs):
    original(trainer, *args, **kwargs)
    try:
        _another_one()
        # Taken now: a ModelCheckpoint without a dirpath gets one of this very start later.
        lightning_checkpoints.remember_home(trainer)
    except Exception as error:
        notes.note("a Trainer is not watched: " + type(error).__name__)


def _begin(trainer, original, package, args, kwargs):
    try:
        if not slot.supervised:
            return args, kwargs
        _another_one()
        lightning_steps.counted(trainer)
        bound = inspect.signature(original).bind(trainer, *args, **kwargs)
        given = bound.arguments.get("ckpt_path")
        if given is None and trainer._checkpoint_connector._user_managed:
            given = trainer.ckpt_path
        home = lightning_checkpoints.home_of(trainer)
        path = resume.checkpoint_for("lightning", home, slot.words[L.W_TRAIN_ORDINAL], given)
        if path is None or not lightning_checkpoints.prepare(bound, path, package):
            return args, kwargs
        bound.arguments["ckpt_path"] = path
        replaced = bound.args[1:], bound.kwargs
        resume.injected()
    except Exception as error:
        notes.note("a training was not prepared: " + type(error).__name__)
        return args, kwargs
    return replaced


def _another_one():
    """After a finished training another one is being prepared: no longer the end."""
    if slot.words[L.W_PHASE] == L.PHASE_FINISHING:
        phases.set_phase(L.PHASE_STARTUP)


def _batch_end(original, training):
    def on_batch_end(self, *args, **kwargs):
        try:
            trainer = self.trainer
            # Before the original: here ModelCheckpoint saves, and Lightning resumes from here.
            if trainer.state.stage is training:
                lightning_steps.batch_ends(trainer)
        except Exception as error:
            notes.note("the end of a batch was missed: " + type(error).__name__)
        return original(self, *args, **kwargs)

    return phases.like(on_batch_end, original)


def _run_starts(_result, loop, *_args, **_kwargs):
    phases.guarded(lightning_steps.begins, loop.trainer)
    settings.attempted("no-eval", trainer_settings.no_validation, loop.trainer)
