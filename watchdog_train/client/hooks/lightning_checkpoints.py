"""Checkpoints of Lightning: where they are kept, records of saves, saves on request, safe loads.

It must not name a directory that Lightning would not write to, and must never throw into a fit.
A pickle of classes can run any code: one is loaded only if this run's own training has written it,
and only this user could have changed it since.
"""

import os
import stat
import sys

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import notes, resume, saves, slot

_VERSION_KEY = "pytorch-lightning_version"

# Of the training that runs, for the records of its saves.
_home = [None]


def remember_home(trainer):
    """Record home_of() before Lightning creates the version directories of this start."""
    trainer._wtrain_home = _find_home(trainer)


def home_of(trainer):
    """The directory that identifies the training; the next saves are recorded as its own."""
    home = getattr(trainer, "_wtrain_home", None) or _find_home(trainer)
    _home[0] = home
    return home


def _find_home(trainer):
    """The directory that the user gave for checkpoints, else the Trainer's root directory.

    Not the folder that ModelCheckpoint makes of it: that has a new version_N at every start.
    Loggers are not asked for theirs: some ask a server for it.
    """
    return os.path.abspath(_dirpath(trainer) or os.fspath(trainer.default_root_dir))


def _dirpath(trainer):
    """The directory of the first checkpoint callback that has one, else None."""
    found = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    return next((os.fspath(directory) for directory in found if directory), None)


def written(_result, _plugin, *args, **kwargs):
    """A checkpoint plugin has written a file; in a thread of its own where it is asynchronous."""
    checkpoint = kwargs["checkpoint"] if "checkpoint" in kwargs else args[0]
    path = os.fspath(kwargs["path"] if "path" in kwargs else args[1])
    # The tuner's own files are hidden; weights alone cannot be resumed from.
    if os.path.basename(path).startswith(".") or not isinstance(checkpoint, dict):
        return
    if _VERSION_KEY in checkpoint and "optimizer_states" in checkpoint:
        path = os.path.abspath(path)
        step, output_dir = int(checkpoint["global_step"]), os.path.dirname(path)
        saves.record(path, "lightning", step=step, output_dir=output_dir, home=_home[0])


def save(trainer):
    """Save on request, on every rank, in addition to Lightning's own checkpoints."""
    step = slot.words[L.W_FRAMEWORK_STEP] - 1
    try:
        directory = _dirpath(trainer)  # known once the training has begun
        if directory is None:
            directory = os.path.join(os.fspath(trainer.default_root_dir), "checkpoints")
        path = os.path.join(directory, "wtrain-step=%d.ckpt" % step)
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
    """Keep what was saved before a stop the newest.

    After should_stop the epoch counts as finished, and a ModelCheckpoint would save that in a file
    of its own: resuming from it leaves out the rest of the epoch.
    """
    step = trainer.global_step
    for callback in trainer.checkpoint_callbacks:
        if hasattr(callback, "_last_global_step_saved"):
            callback._last_global_step_saved = step


_YES = ("1", "y", "yes", "true")


def prepare(bound, path, package):
    """Make the call of fit() load this checkpoint where that is safe, by its argument weights_only.

    False where fit() would refuse the checkpoint: then it must not be handed over.
    """
    held = _refused(bound, path, package)
    if not held:
        return True
    found = "the checkpoint holds " + ", ".join(held)[:200]
    chosen = bound.arguments.get("weights_only")
    if "weights_only" not in bound.signature.parameters:
        why = "this Lightning cannot load that with this torch"
    elif chosen is not None or _is_yes("TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        why = "the script or its environment says weights_only"
    elif not resume.order().get("recorded"):
        why = "it is not known to be written by this run"
    else:
        why = _not_ours_alone(path)
    if why:
        notes.note("not resumed: " + found + ", and " + why)
        return False
    bound.arguments["weights_only"] = False
    notes.note("loaded with weights_only=False: " + found)
    return True


def _refused(bound, path, package):
    """The names in the checkpoint for which torch.load() would refuse it."""
    serialization = sys.modules["torch"].serialization
    look = getattr(serialization, "get_unsafe_globals_in_checkpoint", None)
    # A torch without it loads everything by default; sharded checkpoints are directories.
    if look is None or os.path.isdir(path):
        return []
    chosen = bound.arguments.get("weights_only")
    if chosen is False or (chosen is None and _is_yes("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")):
        return []
    if "weights_only" not in bound.signature.parameters and _loads_everything(package):
        return []
    try:
        return sorted(look(path))
    except (ValueError, RuntimeError):
        # Not what torch.save writes today: whatever wrote it may know how to read it.
        return []


def _loads_everything(package):
    """Whether this Lightning, whose fit() cannot be asked, says weights_only=False by default.

    It does from 2.4 to 2.5; an earlier one leaves it to torch, which refuses classes from 2.6 on.
    """
    fabric = "lightning_fabric" if package == "pytorch_lightning" else "lightning.fabric"
    load = sys.modules[fabric + ".utilities.cloud_io"]._load
    return "weights_only" in load.__code__.co_varnames[: load.__code__.co_argcount]


def _not_ours_alone(path):
    """Why another user might have written what is there, None if impossible."""
    if not hasattr(os, "geteuid"):
        return "this system does not tell whose file it is"
    path = os.path.realpath(path)
    for place in (path, os.path.dirname(path)):
        found = os.stat(place)
        if found.st_uid != os.geteuid():
            return "it or its directory belongs to another user"
        others = found.st_mode & stat.S_IWOTH
        # A group of the same number is the user's own: Debian and Fedora give everybody one, and
        # a umask of 002 with it.
        if others or (found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid):
            return "others may write to it or its directory"
    return None


def _is_yes(name):
    return os.environ.get(name, "0").lower() in _YES
