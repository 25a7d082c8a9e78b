"""Directories of `Accelerator.save_state`: weights, optimizers, and every rank's random state."""

import os
import re

from watchdog_train.checkpoints import disk, formats, sharded
from watchdog_train.checkpoints.disk import DamagedError
from watchdog_train.checkpoints.names import step_in_name

_WITNESS = "random_states_0.pkl"
_RANDOM = re.compile(r"^random_states_(\d{1,6})\.pkl$")
"""Written last by each rank; only `custom_checkpoint_N.pkl` come after rank 0's."""
_OPTIMIZER = re.compile(r"^optimizer(_\d+)?\.bin$")
_WEIGHTS = re.compile(
    r"^(model(_\d+)?|pytorch_model(_\d+)?)\.(safetensors|bin)$"
    r"|^(model|pytorch_model)[^/]*\.(safetensors|bin)\.index\.json$"
)
_TORCH_FILES = re.compile(
    r"^((optimizer|scheduler|sampler|dl_state_dict)(_\d+)?\.bin|scaler\.pt"
    r"|pytorch_model[^/]*\.bin|(random_states|custom_checkpoint)_\d+\.pkl)$"
)
_AUTOMATIC = re.compile(r"^checkpoint_\d{1,9}$")


def _find(listing: disk.Listing) -> tuple[formats.Candidate, ...]:
    """The directory itself, if its contents or neighbours are of save_state."""
    if not _is_state(listing):
        return ()
    name = os.path.basename(listing.path)
    # Automatic naming counts saves, not steps.
    step = None if _AUTOMATIC.match(name) else step_in_name(name)
    files = disk.sizes_of(listing.path)
    return (formats.Candidate(path=listing.path, format="accelerate", step=step, files=files),)


def _is_state(listing: disk.Listing) -> bool:
    """A save that has just begun holds weights only: its name and its siblings decide then."""
    names = listing.names
    has_weights = any(map(_WEIGHTS.match, names))
    if any(map(_RANDOM.match, names)) or (has_weights and any(map(_OPTIMIZER.match, names))):
        return True
    if names and not has_weights and not sharded.is_inside(f"{name}/" for name in names):
        return False
    parent, name = os.path.split(listing.path)
    if _AUTOMATIC.match(name) and os.path.basename(parent) == "checkpoints":
        return True
    return bool(names) and any(character.isdigit() for character in name) and _has_sibling(parent)


def _has_sibling(parent: str) -> bool:
    try:
        entries = disk.list_directory(parent, 1000).entries
    except disk.UnreadableError:
        return False
    others = [one.name for one in entries if one.is_directory and not one.link]
    return any(os.path.exists(os.path.join(parent, name, _WITNESS)) for name in others[-20:])


def _check(candidate: formats.Candidate, limits: formats.Limits) -> formats.Verdict:
    path, files = candidate.path, candidate.files
    formats.refuse_unfinished(files)
    ranks = {int(match[1]) for name in files if (match := _RANDOM.match(name))}
    if not ranks:
        raise DamagedError(f"{_WITNESS} is missing, which is written last")
    formats.refuse_missing_ranks(ranks, limits.world_size or 1, "random_states_{}.pkl")
    doubt = None
    if not sharded.is_inside(files):
        if not any(map(_WEIGHTS.match, files)):
            raise DamagedError("the weights are missing")
        if not any(map(_OPTIMIZER.match, files)):
            doubt = "it holds no optimizer: whether the training has one is not known"
    # A save over an older directory leaves the random states of the older one until its end.
    closed = {name for name in files if _WEIGHTS.match(name) or _OPTIMIZER.match(name)}
    stale = formats.stale_words(_WITNESS, files.get(_WITNESS), files, closed.__contains__)
    parts = sharded.parts(path, files, _TORCH_FILES, limits)
    why = "weights, optimizer and random states agree"
    return formats.of_parts(parts, limits.level, why, (doubt, stale))


FORMAT = formats.Format(
    name="accelerate",
    resume_hint="accelerator.load_state({checkpoint}), for example with "
    '--resume-arg "--resume_from_checkpoint {checkpoint}"',
    owns_directory=True,
    find=_find,
    check=_check,
)
