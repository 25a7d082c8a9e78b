"""Checkpoints of the Hugging Face Trainer: directories checkpoint-N. Never loads their contents."""

import os
import re
from contextlib import closing
from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from watchdog_train.checkpoints import deepspeed, disk, formats, sharded, torch_zip
from watchdog_train.checkpoints.disk import DamagedError
from watchdog_train.checkpoints.pickle_head import words_of

WITNESS = "trainer_state.json"
"""Written last, by rank 0."""
_MARKER = "checkpoint-is-incomplete.txt"
_DIRECTORY = re.compile(r"^(?:tmp-)?checkpoint-(\d{1,15})$")
_FAMILIAR = re.compile(
    r"^(trainer_state\.json|config\.json|generation_config\.json|(model|pytorch_model|adapter_model)\b.*"
    r"|adapter_config\.json|(optimizer|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth"
    r"|training_args\.bin|tokenizer.*|checkpoint-is-incomplete\.txt|global_step\d+|.*\.tmp)$"
)
_WEIGHTS = re.compile(
    r"^([^/]+/)?((pytorch_model|adapter_model)\.bin|(model|adapter_model)\.safetensors"
    r"|(model|pytorch_model)(\.[^/]*)?\.(safetensors|bin)\.index\.json)$"
)
_ADAPTER = re.compile(r"^adapter_model\.(safetensors|bin)$")
_SHARDED_FILE = re.compile(r"^pytorch_model_fsdp[^/]*\.bin$")
_BY_TORCH_SAVE = re.compile(
    r"^([^/]+/)?((optimizer|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth|training_args\.bin"
    r"|(pytorch_model|adapter_model)[^/]*\.bin)$"
)
_READ_ON_RESUME = ("config.json", "adapter_config.json")
_RANK = re.compile(r"^rng_state_(\d{1,5})\.pth$")
_DATA = re.compile(
    r"^([^/]+/)?((model|adapter_model)[^/]*\.safetensors|(pytorch_model|adapter_model)[^/]*\.bin"
    r"|(optimizer|scheduler|scaler)\.pt|rng_state(_0)?\.pth)$"
)
"""Written before the witness by the same process. Other ranks' rng_state may come after it."""
_ARGUMENTS_CAP_BYTES = 4 * 1024 * 1024


def _check(candidate: formats.Candidate, limits: formats.Limits) -> formats.Verdict:
    """Every rule of a complete save, cheapest first; a stale witness is checked in depth."""
    path, files = candidate.path, candidate.files
    if os.path.basename(path).startswith("tmp-"):
        raise DamagedError("by its name a save that has not finished")
    if _MARKER in files:
        raise DamagedError(f"{_MARKER} is there: the save has not finished")
    formats.refuse_unfinished(files)
    _check_witness(os.path.join(path, WITNESS), candidate.step)
    ranks = {int(match[1]) for name in files if (match := _RANK.match(name))}
    if ranks:
        # A single process writes rng_state.pth, so numbered files come from at least two ranks.
        formats.refuse_missing_ranks(ranks, max(limits.world_size or 1, 2), "rng_state_{}.pth")
    doubt = _check_resume_set(path, set(files))
    # A save that began over a complete older one leaves the old witness, and looks complete.
    stale = formats.stale_words(WITNESS, files[WITNESS], files, _DATA.match)
    if stale:
        limits = replace(limits, level="full")
    optimizer = "" if "optimizer.pt" in files else " (model only: the optimizer starts afresh)"
    why = f"trainer state, weights and resume set agree{optimizer}"
    read: list[formats.Part] = [
        (name, partial(_read, path, name)) for name in _READ_ON_RESUME if name in files
    ]
    parts = (*sharded.parts(path, files, _BY_TORCH_SAVE, limits), *read)
    return formats.of_parts(parts, limits.level, why, (stale, doubt))


def _check_witness(path: str, step: int | None) -> None:
    if not os.path.lexists(path):
        raise DamagedError(f"{WITNESS} is missing, which is written last")
    try:
        state = disk.read_json(path)
    except DamagedError as error:
        raise DamagedError(f"{WITNESS}: {error}") from error
    found = state.get("global_step") if isinstance(state, dict) else None
    if type(found) is not int or found != step:
        raise DamagedError(f"{WITNESS} says step {str(found)[:40]}, the directory {step}")


def _check_resume_set(path: str, names: set[str]) -> str | None:
    """DamagedError if a part of the training's state is missing; the reason if that is open."""
    for name in sorted(names):  # PEFT reads the settings of an adapter before its weights
        folder, slash, file = name.rpartition("/")
        settings = f"{folder}{slash}adapter_config.json"
        if _ADAPTER.match(file) and settings not in names:
            raise DamagedError(f"{settings} is missing beside {name}")
    tags = {name.partition("/")[0] for name in names if name.startswith("global_step")}
    in_shards = sharded.is_inside(names) or any(map(_SHARDED_FILE.match, names))
    wanted = ["optimizer.pt", "scheduler.pt"]
    if in_shards:
        wanted = [] if tags else ["scheduler.pt"]
    elif not any(map(_WEIGHTS.match, names)):
        raise DamagedError("the weights are missing")
    if tags and deepspeed.pointed_at(path) not in tags:
        # Without the pointer DeepSpeed loads nothing.
        raise DamagedError(f"{deepspeed.POINTER} does not name {max(tags)}")
    lacking = [name for name in wanted if name not in names]
    if not any(name.startswith("rng_state") for name in names):
        lacking.append("rng_state.pth")
    has_optimizer = tags or any(name.startswith("optimizer_") for name in names)
    if not lacking or (in_shards and not has_optimizer):
        return None
    model_only = _saves_only_model(path) if len(lacking) == 3 else False
    if model_only is False:
        raise DamagedError(f"{lacking[0]} is missing")
    if model_only is None:
        return "it holds only a model, and training_args.bin does not tell whether that is all"
    return None


def _saves_only_model(path: str) -> bool | None:
    """save_only_model by the opcodes of the pickle in training_args.bin, which is never run."""
    try:
        with closing(torch_zip.OpenZip(os.path.join(path, "training_args.bin"))) as archive:
            words = words_of(archive.read_member("/data.pkl", _ARGUMENTS_CAP_BYTES))
    except (DamagedError, disk.UnreadableError, OSError, ValueError):
        return None
    pairs = pairwise(words)
    found = (said for word, said in pairs if word == "save_only_model" and isinstance(said, bool))
    return next(found, None)


def _read(path: str, name: str) -> formats.Verdict:
    disk.read_json(os.path.join(path, name))
    return formats.Verdict(whole=True, why="it parses")


FORMAT = formats.Format(
    name="hf",
    resume_hint="by itself (the hook in Trainer.train), "
    "or trainer.train(resume_from_checkpoint={checkpoint})",
    owns_directory=True,
    find=lambda listing: formats.numbered_directory(listing, "hf", _DIRECTORY, _FAMILIAR),
    check=_check,
    key=formats.by_step,  # as get_last_checkpoint, which looks at nothing else
)
