"""Whether fit() would load a checkpoint that holds classes, and when it may be helped to.

A pickle of such classes can run any code, so it must trust no file but one that this run's own
training has written, and that nobody but this user could have changed since.
"""

import os
import stat
import sys

from watchdog_train.client import notes, resume

_YES = ("1", "y", "yes", "true")


def prepare(bound, path, package):
    """Let the call of fit() load this checkpoint where that is safe.

    Args:
        bound: arguments of fit(), of which weights_only may be set.
        path: the checkpoint that fit() is to go on from.
        package: "lightning.pytorch" or "pytorch_lightning".

    Returns:
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
    """Whether this Lightning, whose fit() cannot be asked, says weights_only=False by itself.

    It does from 2.4 to 2.5; one before leaves it to torch, which refuses classes from 2.6 on.
    """
    fabric = "lightning_fabric" if package == "pytorch_lightning" else "lightning.fabric"
    load = sys.modules[fabric + ".utilities.cloud_io"]._load
    return "weights_only" in load.__code__.co_varnames[: load.__code__.co_argcount]


def _not_ours_alone(path):
    """Why somebody else might have written what is there, None where nobody could have."""
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
