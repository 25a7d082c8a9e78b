"""Accelerate: places and phases of its set-up, saves and loads; and a loop with explicit calls.

The hook decides nothing: when to step, to accumulate or to save stays with the script. The loop
must not import accelerate, must not raise because of wtrain, and outside a supervised run it only
counts steps, and saves on calls of save().
"""

import os
import sys

from watchdog_train.client import beat as api
from watchdog_train.client import control, milestones, notes, phases, resume, saves, settings, slot
from watchdog_train.client import layout as L  # noqa: N812


def arm(module):
    accelerator = module.Accelerator
    try:
        notes.arm_each(lambda part: part(accelerator), (_places, _saves, _loading))
    finally:
        settings.prepare("cpu", "cpu_only", "of_accelerate", accelerator)
        loading = sys.modules["accelerate.data_loader"]
        settings.prepare("skip-bad-batches", "bad_batches", "of_accelerate", loading)


def _places(accelerator):
    milestones.around_method(accelerator, "__init__", "build Accelerator")
    milestones.around_method(accelerator, "prepare", "Accelerator.prepare")
    milestones.around_method(accelerator, "init_trackers", "Accelerator.init_trackers")


def _saves(accelerator):
    accelerator.save_state = saves.of_directory(accelerator.save_state, _record)


def _record(where, accelerator, *_args, **_kwargs):
    # The other ranks write into the same directory, and another may have finished before
    # the first has begun with the weights.
    if accelerator.is_main_process and isinstance(where, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(where))
        saves.record_directory(path, "accelerate", os.path.dirname(path))
        notes.output_dir(os.path.dirname(path))


def _loading(accelerator):
    load = milestones.around("Accelerator.load_state", accelerator.load_state, L.PHASE_LOAD)
    accelerator.load_state = phases.after(load, _loaded)


def _loaded(_result, _accelerator, *args, **kwargs):
    resume.loaded(args[0] if args else kwargs.get("input_dir"))


class _Step:
    """The number of steps done, as a part of what save_state writes."""

    def __init__(self):
        self.done = 0

    def state_dict(self):
        return {"step": self.done}

    def load_state_dict(self, state):
        self.done = int(state["step"])


class WatchdogLoop:
    """Progress, resuming, and saves and stops on request, for a loop over an Accelerator.

    To be made on every rank, after whatever else is registered for checkpointing and before
    resume(): what is registered is told apart by its order.

    Args:
        accelerator: an accelerate.Accelerator.
        directory: where save() makes a directory step_N for each checkpoint, on every rank the
            same. Not used where the Accelerator names its checkpoints itself.
        total_steps: how many steps there will be, None where that is not known.
    """

    def __init__(self, accelerator, directory, total_steps=None):
        self.accelerator = accelerator
        self.directory = os.path.abspath(os.fspath(directory))
        self.total_steps = total_steps
        self._step = _Step()
        accelerator.register_for_checkpointing(self._step)
        phases.guarded(self._begins)

    @property
    def step(self):
        """Steps done, those before the checkpoint included."""
        return self._step.done

    def resume(self):
        """Load the checkpoint that wtrain has chosen.

        Returns:
            Whether there was one; then `step` is the one at which it was saved.

        Raises:
            Whatever load_state raises: half a checkpoint loaded is nothing to train on with.
        """
        path = api.resume_path()
        wanted = resume.order().get("format", "accelerate")
        if path is None or wanted != "accelerate":
            if path is not None:
                notes.note("not resumed: a checkpoint of " + str(wanted)[:40])
            return False
        self.accelerator.load_state(path)
        # The hook has reported it already, if it is armed for this version.
        resume.loaded(path)
        return True

    def step_done(self):
        """Count a step, tell of it, and save if that was asked for; to be called on every rank.

        Returns:
            Whether the loop should end now; then everything has been saved.
        """
        self._step.done += 1
        step = self._step.done
        if not slot.supervised:
            return False
        api.beat(step, self.total_steps)
        saving = control.save_due(step)
        answered = slot.words[L.W_STOP_ANSWERED]
        stopping = control.stop_due(step)
        # Ctrl-C promises a save.
        if saving or slot.words[L.W_STOP_ANSWERED] != answered:
            self._save_as_asked()
        if stopping or (self.total_steps is not None and step >= self.total_steps):
            phases.guarded(milestones.training_finished)
        return stopping

    def save(self):
        """Save everything, on every rank.

        Returns:
            The directory, where save_state gives it back.
        """
        naming = getattr(self.accelerator, "project_configuration", None)
        if getattr(naming, "automatic_checkpoint_naming", False):
            return self.accelerator.save_state()
        return self.accelerator.save_state(os.path.join(self.directory, "step_%d" % self.step))

    def _save_as_asked(self):
        try:
            self.save()
        except Exception as error:
            if getattr(self.accelerator, "num_processes", 1) > 1:
                # The other ranks wait in the save for this one.
                raise
            notes.note("asked to save, and the save failed: " + str(error)[:200])

    def _begins(self):
        control.listens()
        notes.output_dir(self.directory)
