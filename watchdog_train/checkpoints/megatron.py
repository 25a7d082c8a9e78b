"""Directories iter_NNNNNNN of Megatron-LM: one file for each model part, or its distributed format.

From the rules of August 2026's source: the tracker file beside them is written after all ranks
have saved, by a plain open for writing, so that a kill can leave it empty.
"""

import itertools
import os
import re

from msgspec.structs import replace

from watchdog_train.checkpoints import dcp, disk, formats, torch_zip
from watchdog_train.checkpoints.disk import DamagedError

TRACKER = "latest_checkpointed_iteration.txt"
_DIRECTORY = re.compile(r"^iter_(\d{7,12})$")
_PART = re.compile(r"^mp_rank_(?P<tensor>\d{2,6})(?:_(?P<pipeline>\d{3,6}))?/(?P<name>[^/]+)$")
_FAMILIAR = re.compile(r"^(mp_rank_\d+.*|common\.pt|metadata\.json|\.metadata|__.*\.distcp)$")
_MAIN = "model_optim_rng.pt"
_TRACKER_CAP_BYTES = 4096


def _check(candidate: formats.Candidate, limits: formats.Limits) -> formats.Verdict:
    """Its own files first, then the tracker's word on the end of the save."""
    path, files = candidate.path, candidate.files
    of_ranks = any(name.startswith("__") or name in (dcp.WITNESS, "common.pt") for name in files)
    verdict = (_check_distributed if of_ranks else _check_parts)(path, files, limits)
    return _with_tracker(verdict, candidate)


def _check_distributed(path: str, files: disk.Sizes, limits: formats.Limits) -> formats.Verdict:
    if "metadata.json" not in files:
        raise DamagedError("metadata.json is missing, which is written last")
    described = disk.read_json(os.path.join(path, "metadata.json"))
    if not isinstance(described, dict) or "sharded_backend" not in described:
        raise DamagedError("metadata.json does not describe a distributed checkpoint")
    if "common.pt" not in files:
        raise DamagedError("common.pt is missing")
    formats.of_parts(torch_zip.parts(path, ("common.pt",), limits), limits.level, "")
    if described["sharded_backend"] != "torch_dist":
        why = f"its shards are of the {str(described['sharded_backend'])[:40]} kind: not checked"
        return formats.Verdict(whole=None, why=why)
    return dcp.check_directory(path, files, limits)


def _check_parts(path: str, files: disk.Sizes, limits: formats.Limits) -> formats.Verdict:
    """Every tensor and pipeline part has the same files, each a good file of torch.save."""
    parts: dict[tuple[int, int], set[str]] = {}
    for match in filter(None, map(_PART.match, files)):
        key = (int(match["tensor"]), int(match["pipeline"] or 0))
        parts.setdefault(key, set()).add(match["name"])
    if not parts:
        raise DamagedError("no part of the model is in it")
    wanted = set().union(*parts.values()) | {_MAIN}
    tensors, pipelines = (range(max(numbers) + 1) for numbers in zip(*parts, strict=True))
    for tensor, pipeline in itertools.product(tensors, pipelines):
        lacking = sorted(wanted - parts.get((tensor, pipeline), set()))
        if lacking:
            where = f"tensor part {tensor}, pipeline part {pipeline}"
            raise DamagedError(f"{lacking[0]} of {where} is missing")
    checks = torch_zip.parts(path, filter(_PART.match, files), limits)
    return formats.of_parts(checks, limits.level, f"all {len(parts)} model parts are there")


def _with_tracker(verdict: formats.Verdict, candidate: formats.Candidate) -> formats.Verdict:
    """The tracker names the newest iteration whose save has ended."""
    step, tracker = candidate.step or 0, os.path.join(os.path.dirname(candidate.path), TRACKER)
    try:
        text = disk.read_capped(tracker, _TRACKER_CAP_BYTES).strip()
    except disk.UnreadableError:
        return verdict
    if text == b"release":
        return verdict
    if not text.isdigit():
        why = f"{verdict.why}; {TRACKER} is empty or damaged: it has to be corrected by hand"
        return replace(verdict, why=why)
    if int(text) < step:
        named = f"{TRACKER} still names iteration {int(text)}"
        raise DamagedError(f"{named}: this save had not finished")
    stale = formats.stale_words(TRACKER, disk.sizes_of(tracker).get(TRACKER), candidate.files)
    if stale and int(text) == step:
        return replace(verdict, whole=None, why=stale)
    return verdict


FORMAT = formats.Format(
    name="megatron",
    resume_hint="--load with the directory above {checkpoint} (add --ckpt-step for an older one)",
    owns_directory=True,
    find=lambda listing: formats.numbered_directory(listing, "megatron", _DIRECTORY, _FAMILIAR),
    check=_check,
    # The tracker is believed only if it says that a save has ended.
    key=formats.by_step,
)
