"""Directories iter_NNNNNNN of Megatron-LM: one file for each model part, or its distributed format.

From the rules of August 2026's source: the tracker file beside them is written after all ranks
have saved, by a plain open for writing, so that a kill can leave it empty.
"""

from __future__ import annotations

import os
import re

from watchdog_train.checkpoints import dcp, torch_zip
from watchdog_train.checkpoints.files import (
    JSON_CAP_BYTES,
    DamagedError,
    Listing,
    Sizes,
    UnreadableError,
    parse_json,
    read_capped,
    sizes_of,
)
from watchdog_train.checkpoints.formats import (
    Candidate,
    Limits,
    Verdict,
    doubts_of,
    lowest_level,
    stale_words,
)

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
_DIRECTORY = re.compile(r"^iter_(\d{7,12})$")
_PART = re.compile(r"^mp_rank_(?P<tensor>\d{2,6})(?:_(?P<pipeline>\d{3,6}))?/(?P<name>[^/]+)$")
_FAMILIAR = re.compile(r"^(mp_rank_\d+.*|common\.pt|metadata\.json|\.metadata|__.*\.distcp)$")
_MAIN = "model_optim_rng.pt"
_TRACKER_CAP_BYTES = 4096


class MegatronFormat:
    """Directories iter_NNNNNNN below the directory of --save."""

    name = NAME
    owns_directory = True
    resume_hint = "--load with the directory above {checkpoint} (add --ckpt-step for an older one)"

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """The directory itself, if its name and what is in it are Megatron's."""
        match = _DIRECTORY.match(os.path.basename(listing.path))
        if match is None:
            return ()
        names = listing.names
        if names and not any(_FAMILIAR.match(name) for name in names):
            return ()  # some other program's directory of that name
        files = sizes_of(listing.path)
        step = int(match[1])
        return (Candidate(path=listing.path, format=NAME, step=step, order=step, files=files),)

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By iteration: the tracker is believed only where it says that a save has ended."""
        return tuple(
            sorted(candidates, key=lambda item: (item.step or 0, item.mtime_ns), reverse=True)
        )

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Its own files first, then what the tracker says about the save having ended."""
        files = candidate.files
        try:
            if any(name.startswith("__") or name == dcp.WITNESS for name in files) or (
                "common.pt" in files
            ):
                verdict = _check_distributed(candidate.path, files, limits)
            else:
                verdict = _check_parts(candidate.path, files, limits)
        except DamagedError as error:
            return Verdict(whole=False, why=str(error), how_checked=limits.level)
        except (UnreadableError, OSError) as error:
            return Verdict(whole=None, why=f"it cannot be checked: {error}", how_checked="quick")
        if verdict.whole is False:
            return verdict
        return _with_tracker(verdict, os.path.dirname(candidate.path), candidate)


def _check_distributed(path: str, files: Sizes, limits: Limits) -> Verdict:
    if "metadata.json" not in files:
        raise DamagedError("metadata.json is missing, which is written last")
    described = parse_json(read_capped(os.path.join(path, "metadata.json"), JSON_CAP_BYTES))
    if not isinstance(described, dict) or "sharded_backend" not in described:
        raise DamagedError("metadata.json does not describe a distributed checkpoint")
    if "common.pt" not in files:
        raise DamagedError("common.pt is missing")
    common = torch_zip.check_file(os.path.join(path, "common.pt"), limits)
    if common.whole is False:
        raise DamagedError(f"common.pt: {common.why}")
    if described["sharded_backend"] != "torch_dist":
        why = f"its shards are of the {str(described['sharded_backend'])[:40]} kind: not checked"
        return Verdict(whole=None, why=why, how_checked="quick")
    shards = {name: times for name, times in files.items() if dcp.belongs(name)}
    return dcp.check_directory(path, shards, limits)


def _check_parts(path: str, files: Sizes, limits: Limits) -> Verdict:
    """Every tensor and pipeline part has the same files, each a good file of torch.save."""
    parts: dict[tuple[int, int], set[str]] = {}
    for name in files:
        match = _PART.match(name)
        if match is not None:
            key = (int(match["tensor"]), int(match["pipeline"] or 0))
            parts.setdefault(key, set()).add(match["name"])
    if not parts:
        raise DamagedError("no part of the model is in it")
    tensor = max(key[0] for key in parts) + 1
    pipeline = max(key[1] for key in parts) + 1
    wanted = set().union(*parts.values()) | {_MAIN}
    for key in ((one, other) for one in range(tensor) for other in range(pipeline)):
        lacking = sorted(wanted - parts.get(key, set()))
        if lacking:
            where = f"tensor part {key[0]}, pipeline part {key[1]}"
            raise DamagedError(f"{lacking[0]} of {where} is missing")
    verdicts = torch_zip.check_files(path, filter(_PART.match, files), limits)
    doubts, level = doubts_of(verdicts), lowest_level(verdicts)
    if doubts:
        return Verdict(whole=None, why="; ".join(doubts[:5]), how_checked=level)
    return Verdict(whole=True, why=f"all {len(parts)} model parts are there", how_checked=level)


def _with_tracker(verdict: Verdict, directory: str, candidate: Candidate) -> Verdict:
    """The tracker names the newest iteration whose save has ended."""
    step = candidate.step or 0
    try:
        text = read_capped(os.path.join(directory, TRACKER), _TRACKER_CAP_BYTES).strip()
    except UnreadableError:
        return verdict
    if text == b"release":
        return verdict
    if not text.isdigit():
        why = f"{verdict.why}; {TRACKER} is empty or damaged: it has to be corrected by hand"
        return Verdict(whole=verdict.whole, why=why, how_checked=verdict.how_checked)
    if int(text) < step:
        why = f"{TRACKER} still names iteration {int(text)}: this save had not finished"
        return Verdict(whole=False, why=why, how_checked=verdict.how_checked)
    times = sizes_of(os.path.join(directory, TRACKER)).get(TRACKER)
    closed = {name: mtime_ns for name, (_, mtime_ns) in candidate.files.items()}
    stale = stale_words(TRACKER, times, closed) if int(text) == step else None
    if stale:
        return Verdict(whole=None, why=stale, how_checked=verdict.how_checked)
    return verdict
