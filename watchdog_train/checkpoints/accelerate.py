"""Directories of `Accelerator.save_state`: weights, optimizers, and every rank's random state."""

from __future__ import annotations

import os
import re

from watchdog_train.checkpoints import safetensors, sharded, torch_zip
from watchdog_train.checkpoints.files import (
    DamagedError,
    Listing,
    Sizes,
    UnreadableError,
    list_directory,
    sizes_of,
)
from watchdog_train.checkpoints.formats import (
    Candidate,
    Limits,
    Verdict,
    by_number_then_time,
    doubts_of,
    number_in_name,
    stale_words,
)

NAME = "accelerate"
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


class AccelerateFormat:
    """Directories that Accelerator.save_state has written."""

    name = NAME
    owns_directory = True
    resume_hint = (
        "accelerator.load_state({checkpoint}), for example with "
        '--resume-arg "--resume_from_checkpoint {checkpoint}"'
    )

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """The directory itself, where what is in it or beside it is of save_state."""
        if not _is_state(listing):
            return ()
        step, order = number_in_name(os.path.basename(listing.path))
        if _AUTOMATIC.match(os.path.basename(listing.path)):
            step = None  # automatic naming counts saves, not steps
        return (
            Candidate(
                path=listing.path,
                format=NAME,
                step=step,
                order=order,
                files=sizes_of(listing.path),
            ),
        )

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By number in the name, then by time."""
        return by_number_then_time(candidates)

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Weights, optimizer and every rank's random state are there and right in themselves."""
        path, files = candidate.path, candidate.files
        try:
            doubts = _check_set(files, limits.world_size)
            in_depth, more = _check_contents(path, files, limits)
        except DamagedError as error:
            return Verdict(whole=False, why=str(error), how_checked=limits.level)
        except (UnreadableError, OSError) as error:
            return Verdict(whole=None, why=f"it cannot be checked: {error}", how_checked="quick")
        level = "full" if in_depth else "quick"
        stale = _stale(files)
        doubts += more + ([stale] if stale else [])
        if doubts:
            return Verdict(whole=None, why="; ".join(doubts[:5]), how_checked=level)
        return Verdict(
            whole=True, why="weights, optimizer and random states agree", how_checked=level
        )


def _is_state(listing: Listing) -> bool:
    """A save that has just begun holds weights only: its name and its siblings tell then."""
    names = {entry.name for entry in listing.entries}
    if any(_RANDOM.match(name) for name in names):
        return True
    has_weights = any(_WEIGHTS.match(name) for name in names)
    if has_weights and any(_OPTIMIZER.match(name) for name in names):
        return True
    if names and not has_weights and not sharded.is_inside(f"{name}/" for name in names):
        return False
    automatic = _AUTOMATIC.match(os.path.basename(listing.path)) is not None
    if automatic and os.path.basename(os.path.dirname(listing.path)) == "checkpoints":
        return True
    return (
        bool(names)
        and number_in_name(os.path.basename(listing.path))[1] is not None
        and (_has_sibling(listing.path))
    )


def _has_sibling(path: str) -> bool:
    parent = os.path.dirname(path)
    try:
        siblings = [entry for entry in list_directory(parent, 1000).entries if not entry.link]
    except UnreadableError:
        return False
    others = [item.name for item in siblings if item.kind == "directory"]
    return any(
        os.path.exists(os.path.join(parent, name, "random_states_0.pkl")) for name in others[-20:]
    )


def _check_set(files: Sizes, world_size: int | None) -> list[str]:
    unfinished = sorted(name for name in files if name.endswith(".tmp"))
    if unfinished:
        raise DamagedError(f"{unfinished[0]} is there: a file that was still being written")
    ranks = {int(match[1]) for name in files if (match := _RANDOM.match(name))}
    if not ranks:
        raise DamagedError("random_states_0.pkl is missing, which is written last")
    expected = max(max(ranks) + 1, world_size or 1)
    lacking = sorted(set(range(expected)) - ranks)
    if lacking:
        raise DamagedError(
            f"random_states_{lacking[0]}.pkl is missing: "
            f"{len(ranks)} of {expected} ranks have saved"
        )
    in_shards = sharded.is_inside(files)
    if not in_shards and not any(_WEIGHTS.match(name) for name in files):
        raise DamagedError("the weights are missing")
    if not in_shards and not any(_OPTIMIZER.match(name) for name in files):
        return ["it holds no optimizer: whether the training has one is not known"]
    return []


def _check_contents(path: str, files: Sizes, limits: Limits) -> tuple[bool, list[str]]:
    in_depth = limits.level == "full"
    verdicts: list[tuple[str, Verdict]] = []
    for name in sorted(files):
        where = os.path.join(path, name)
        if name.endswith(safetensors.INDEX_SUFFIX):
            verdicts.append((name, safetensors.check_index(path, name)))
        elif name.endswith(safetensors.SUFFIX):
            verdicts.append((name, safetensors.check_file(where)))
        elif _TORCH_FILES.match(name):
            verdict = torch_zip.check_file(where, limits)
            in_depth = in_depth and verdict.how_checked == "full"
            verdicts.append((name, verdict))
    verdicts += sharded.check_inside(path, files, limits).items()
    return in_depth, doubts_of(verdicts)


def _stale(files: Sizes) -> str | None:
    """A save over an older directory leaves the random states of the older one until its end."""
    closed = {
        name: times[1]
        for name, times in files.items()
        if _WEIGHTS.match(name) or _OPTIMIZER.match(name)
    }
    return stale_words("random_states_0.pkl", files.get("random_states_0.pkl"), closed)
