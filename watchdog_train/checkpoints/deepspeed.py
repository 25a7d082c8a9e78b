"""Directories of DeepSpeed: one for each tag, and beside them the text file `latest`.

From the rules of August 2026's source: every data-parallel rank writes its optimizer shard, rank 0
writes `latest` after its own files and before the last barrier. Nothing is atomic.
"""

import os
import re

from watchdog_train.checkpoints import disk, formats, torch_zip
from watchdog_train.checkpoints.disk import DamagedError
from watchdog_train.checkpoints.names import step_in_name

POINTER = "latest"
_SHARD = re.compile(
    r"^(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_(?P<model>\d{1,6})"
    r"_(?P<kind>optim|model)_states\.pt$"
)
_OF_RANK_0 = re.compile(r"^(mp_rank_00_|(bf16_|fp16_)?zero_pp_rank_0_mp_rank_00_)")
_MODEL = re.compile(r"^mp_rank_\d{1,6}_model_states\.pt$|^layer_\d+-model_\d+-model_states\.pt$")
_POINTER_CAP_BYTES = 4096
_ALIKE = 4.0
"""Optimizer shards are equal parts; one below a fourth of the largest was cut."""


def belongs(name: str) -> bool:
    """Whether a file of this name is a part of such a checkpoint."""
    return _SHARD.match(name) is not None or _MODEL.match(name) is not None


def check_directory(path: str, files: disk.Sizes, limits: formats.Limits) -> formats.Verdict:
    """Every rank's shard is there and a good zip, and the pointer is not behind.

    Of one tag, alone or as a part of something larger.
    """
    above, tag = os.path.split(path)
    pointed = pointed_at(above)
    older = step_in_name(pointed) if pointed is not None else None
    step = step_in_name(tag)
    if older is not None and step is not None and older < step:
        # Rank 0 has not finished this save while the pointer names an older one.
        raise DamagedError(f"{POINTER} still names {pointed}: this save had not finished")
    count = _check_shards(files, limits.world_size)
    doubt = None
    if pointed == tag:
        # A save over an older one of the same tag leaves the pointer as it was until rank 0's end.
        # The files of the other ranks may come after it.
        pointer = disk.sizes_of(os.path.join(above, POINTER)).get(POINTER)
        doubt = formats.stale_words(POINTER, pointer, files, _OF_RANK_0.match)
    elif not count:
        # Without ZeRO the model states hold the optimizer; with it the shards come after them.
        doubt = f"no optimizer shards, and {POINTER} does not say that the save has ended"
    why = f"all {count} optimizer shards and the model are there" if count else "the model is there"
    parts = torch_zip.parts(path, filter(belongs, files), limits)
    return formats.of_parts(parts, limits.level, why, (doubt,))


def _check_shards(files: disk.Sizes, world_size: int | None) -> int:
    """How many optimizer shards there are; each model-parallel part has the same ranks."""
    ranks: dict[tuple[str, int], set[int]] = {}
    sizes: dict[int, str] = {}  # of the optimizer's, in bytes
    count = 0
    for name in files:
        if match := _SHARD.match(name):
            key = (match["kind"], int(match["model"]))
            ranks.setdefault(key, set()).add(int(match["rank"]))
            if match["kind"] == "optim":
                count += 1
                sizes.setdefault(files[name][0], name)
    kinds = {kind for kind, _ in ranks}
    if "model" not in kinds and not any(map(_MODEL.match, files)):
        raise DamagedError("the model states are missing")
    expected = max((max(found) + 1 for found in ranks.values()), default=0)
    parts = max((model for _, model in ranks), default=-1) + 1
    if world_size is not None and parts and world_size % parts == 0:
        expected = max(expected, world_size // parts)
    for kind in kinds:
        for model in range(parts):
            lacking = sorted(set(range(expected)) - ranks.get((kind, model), set()))
            if lacking:
                missing = f"the {kind} states of rank {lacking[0]} (model part {model}) are missing"
                raise DamagedError(f"{missing}: {expected} ranks save")
    small, largest = min(sizes, default=0), max(sizes, default=0)
    if small * _ALIKE < largest:
        raise DamagedError(
            f"{sizes[small]} has {small} bytes where others have {largest}: cut short"
        )
    return count


def pointed_at(directory: str) -> str | None:
    """The tag in `latest`, None without one."""
    try:
        data = disk.read_capped(os.path.join(directory, POINTER), _POINTER_CAP_BYTES)
        tag = data.decode("utf-8").strip()
    except (disk.UnreadableError, UnicodeDecodeError):
        return None
    return tag if disk.is_plain_name(tag) else None


FORMAT = formats.Format(
    name="deepspeed",
    resume_hint="engine.load_checkpoint(the directory above {checkpoint}, tag=its name); "
    "under a Hugging Face Trainer by itself",
    owns_directory=True,
    find=lambda listing: formats.a_directory(listing, "deepspeed", listing.sizes(belongs)),
    check=lambda candidate, limits: check_directory(candidate.path, candidate.files, limits),
)
