"""Where a Lightning training keeps its checkpoints, records of them, and saves on request.

It must not name a directory that Lightning would not write to, and must never throw into a fit.
"""

import os

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, saves, slot

_VERSION_KEY = "pytorch-lightning_version"

# Of the training that runs, for the records of its saves.
_home = [None]


def remember_home(trainer):
    """Keep by what this training is known again, before Lightning makes names of this start."""
    trainer._wtrain_home = _find_home(trainer)


def home_of(trainer):
    """By what this training is known again; also says whose the next saves are."""
    home = getattr(trainer, "_wtrain_home", None) or _find_home(trainer)
    _home[0] = home
    return home


def _find_home(trainer):
    """The directory that the user gave for checkpoints, else the Trainer's root directory.

    Not the folder that ModelCheckpoint makes of it: that has a new version_N at every start.
    Loggers are not asked for theirs: some ask a server for it.
    """
    for callback in trainer.checkpoint_callbacks:
        directory = getattr(callback, "dirpath", None)
        if directory:
            return os.path.abspath(os.fspath(directory))
    return os.path.abspath(os.fspath(trainer.default_root_dir))


def directory(trainer):
    """Where this training writes checkpoints to; known once it has begun."""
    for callback in trainer.checkpoint_callbacks:
        found = getattr(callback, "dirpath", None)
        if found:
            return os.fspath(found)
    return os.path.join(os.fspath(trainer.default_root_dir), "checkpoints")


def written(args, kwargs):
    """A checkpoint plugin has written a file; in a thread of its own where it is asynchronous."""
    checkpoint = kwargs["checkpoint"] if "checkpoint" in kwargs else args[0]
    path = os.fspath(kwargs["path"] if "path" in kwargs else args[1])
    # The tuner's own files are hidden; weights alone are nothing to go on from.
    if os.path.basename(path).startswith(".") or not isinstance(checkpoint, dict):
        return
    if _VERSION_KEY in checkpoint and "optimizer_states" in checkpoint:
        saves.record_file(path, "lightning", int(checkpoint["global_step"]), _home[0])


def save(trainer):
    """Save on request, on every rank, beside Lightning's own checkpoints."""
    step = slot.words[L.W_FRAMEWORK_STEP] - 1
    try:
        path = os.path.join(directory(trainer), "wtrain-step=%d.ckpt" % step)
        # Left out, Lightning says in the output what it takes for it.
        trainer.save_checkpoint(path, weights_only=False)
    except Exception as error:
        notes.note(
            "asked to save, and the save failed: " + type(error).__name__ + ": " + str(error)
        )
        if trainer.world_size > 1:
            # The other ranks wait at the end of the save for the one that has failed.
            trainer.strategy.barrier("wtrain")


def nothing_more_at_this_step(trainer):
    """Let what was saved before a stop be the newest.

    After should_stop the epoch counts as finished, and a ModelCheckpoint would say so in a file of
    its own: whoever goes on from that leaves out the rest of the epoch.
    """
    step = trainer.global_step
    for callback in trainer.checkpoint_callbacks:
        if hasattr(callback, "_last_global_step_saved"):
            callback._last_global_step_saved = step
