"""wandb.init: one experiment stays one run across attempts, and data may stay on disk.

It must never override an id, a mode or a resume that the user has given, except where the plan
asks for it, and must never let two trainings write into one run. wandb.log stays what it is.
"""

import os
import sys
import zlib

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, notes, phases, roles, settings, slot

_KEY = ("entity", "project", "name", "group", "job_type")
_ADDED = {"id", "resume", "mode"}
"""What may be added: an init without these is of another kind, and gets nothing."""
_USERS_CHOICE = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID")
_MOST_BYTES = 64 << 10


def arm(module):
    """Hook into a wandb: init and finish are places, both wait for a server or a process."""
    # Called from a callback it would else be judged by the limits of a first step.
    phases.replacing(module, "init")(_init)
    milestones.around_method(module, "init", "wandb.init", L.PHASE_STARTUP)
    milestones.around_method(module, "finish", "wandb.finish")


def _init(original, *args, **kwargs):
    offline = False
    try:
        if slot.supervised:
            bound = settings.bind(original, args, kwargs)
            given = bound.arguments
            if _ADDED.issubset(bound.signature.parameters):
                offline = _goes_offline(given)
                given.update(_identity(given))
                if offline:
                    given["mode"] = "offline"
                args, kwargs = bound.args, bound.kwargs
            elif settings.parameters("wandb-offline") is not None:
                settings.report("wandb-offline", False, "this wandb.init takes no such argument")
    except Exception as error:
        notes.note("wandb.init was left as it is: " + type(error).__name__)
    run = original(*args, **kwargs)
    if offline:
        _say_where(run)
    return run


def _rank():
    """The number of this rank, also before it has joined a process group."""
    for name in ("RANK", "LOCAL_RANK"):
        found = roles.number(name)
        if found is not None:
            return found
    return max(0, slot.words[L.W_RANK] - 1)


def _mode(given):
    return str(given.get("mode") or os.environ.get("WANDB_MODE", "")).lower()


def _goes_offline(given):
    entry = settings.parameters("wandb-offline")
    if entry is None or (entry.get("keep_rank_0") and _rank() == 0):
        return False
    if _mode(given) in ("disabled", "dryrun"):
        settings.report("wandb-offline", True, "already " + _mode(given))
        return False
    return True


@slot.harmless
def _say_where(run):
    place = getattr(getattr(run, "settings", None), "sync_dir", None)
    if not place:
        settings.report("wandb-offline", True, "offline; later: wandb sync wandb/offline-run-*")
        return
    said = "rank %d stays in %s; send it with: wandb sync %s" % (_rank(), place, place)
    settings.report("wandb-offline", True, said)


def _identity(given):
    """Id and resume for a run that the next attempt continues, nothing if that is unsure.

    Several runs of the same name in one attempt (folds, tasks) cannot be distinguished by the next
    one, so none of them is ever resumed.
    """
    module = sys.modules.get("wandb")
    if (
        _rank() != 0
        or _mode(given) == "disabled"
        or any(os.environ.get(name) for name in _USERS_CHOICE)
        or any(given.get(name) for name in ("id", "resume_from", "fork_from"))
        or given.get("resume") not in (None, "allow")
        or _settings_choose(given.get("settings"))
        or getattr(module, "run", None) is not None
        or not slot.attempt_dir
    ):
        return {}
    # Not all of the command: the next attempt may be given a checkpoint in it.
    parts = [str(given.get(name) or "") for name in _KEY] + list(sys.argv[:1])
    key = "%08x" % zlib.crc32("\0".join(parts).encode("utf-8", "replace"))
    alone = _count(slot.attempt_dir, key, add=True) == 1
    attempts = os.path.dirname(slot.attempt_dir)
    for attempt in os.listdir(attempts):
        alone = alone and _count(os.path.join(attempts, attempt), key) < 2
    if not alone:
        return {}
    run_id = os.path.basename(os.path.dirname(attempts))
    plain = "".join(one if one.isascii() and one.isalnum() else "-" for one in run_id)
    found = {"id": plain[:50].strip("-") + "-" + key}
    # Offline it would only be warned about: there `wandb sync` joins what has one id.
    if _mode(given) != "offline" and settings.parameters("wandb-offline") is None:
        found["resume"] = "allow"
    return found


def _settings_choose(chosen):
    if chosen is None:
        return False
    look = chosen.get if isinstance(chosen, dict) else lambda name: getattr(chosen, name, None)
    return any(look(name) for name in ("run_id", "resume", "sweep_id"))


def _count(attempt_dir, key, add=False):
    """How often a run of this key was begun in an attempt; with `add` this one counts, too."""
    path = os.path.join(attempt_dir, "wandb-runs.txt")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if add else os.O_RDONLY
    try:
        descriptor = os.open(path, flags | slot.SAFE_FLAGS, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        if add:
            os.write(descriptor, key.encode("ascii") + b"\n")
            os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, _MOST_BYTES).split(b"\n").count(key.encode("ascii"))
    finally:
        os.close(descriptor)
