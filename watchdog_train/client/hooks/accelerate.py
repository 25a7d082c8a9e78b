"""Accelerate: its set-up as places, save_state and load_state as phases, with a record of a save.

It must not decide anything: when to step, to accumulate or to save stays with the script.
"""

import os
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, resume, saves, settings


def arm(module):
    """Hook into an accelerate.accelerator that has just been imported."""
    accelerator = module.Accelerator
    problems = []
    for part in (_places, _saving, _loading):
        try:
            part(accelerator)
        except Exception as error:
            problems.append(part.__name__ + " " + type(error).__name__ + ": " + str(error)[:100])
    settings.prepare("cpu", "cpu_only", "of_accelerate", accelerator)
    loading = sys.modules["accelerate.data_loader"]
    settings.prepare("skip-bad-batches", "bad_batches", "of_accelerate", loading)
    if problems:
        raise RuntimeError("; ".join(problems))


def _places(accelerator):
    milestones.around_method(accelerator, "__init__", "build Accelerator")
    milestones.around_method(accelerator, "prepare", "Accelerator.prepare")
    milestones.around_method(accelerator, "init_trackers", "Accelerator.init_trackers")


def _saving(accelerator):
    original = accelerator.save_state

    def save_state(self, *args, **kwargs):
        token = saves.begin_directory()
        try:
            where = original(self, *args, **kwargs)
        finally:
            saves.end_directory(token)
        _record(self, where)
        return where

    accelerator.save_state = phases.like(save_state, original)


def _record(accelerator, where):
    try:
        # The other ranks write into the same directory, and one of them may be through before
        # the first has begun with the weights.
        if accelerator.is_main_process and isinstance(where, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(where))
            saves.record_directory(path, "accelerate", None, None, os.path.dirname(path))
            notes.output_dir(os.path.dirname(path))
    except Exception as error:
        notes.note("a checkpoint was not recorded: " + type(error).__name__)


def _loading(accelerator):
    original = accelerator.load_state

    def load_state(self, *args, **kwargs):
        place = milestones.begin("Accelerator.load_state")
        token = phases.enter(L.PHASE_LOAD)
        failed = True
        try:
            result = original(self, *args, **kwargs)
            failed = False
        finally:
            phases.leave(token)
            milestones.end(place, failed)
        source = args[0] if args else kwargs.get("input_dir")
        resume.loaded(source)
        return result

    accelerator.load_state = phases.like(load_state, original)
