"""Checkpoints of the Hugging Face Trainer: directories checkpoint-N. Never loads what they hold."""

from __future__ import annotations

import os
import pickletools
import re
import struct
from collections.abc import Iterable
from contextlib import closing

from watchdog_train.checkpoints import deepspeed, safetensors, sharded, torch_zip
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
from watchdog_train.checkpoints.formats import Candidate, Limits, Verdict, doubts_of, stale_words

NAME = "hf"
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


class HuggingFaceFormat:
    """Directories checkpoint-N below a Trainer's output directory."""

    name = NAME
    owns_directory = True
    resume_hint = (
        "by itself (the hook in Trainer.train), "
        "or trainer.train(resume_from_checkpoint={checkpoint})"
    )

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """The directory itself, if its name and what is in it are the Trainer's."""
        match = _DIRECTORY.match(os.path.basename(listing.path))
        if match is None:
            return ()
        names = listing.names
        if names and not any(_FAMILIAR.match(name) for name in names):
            return ()  # some other program's directory of that name
        step = int(match[1])
        return (
            Candidate(
                path=listing.path, format=NAME, step=step, order=step, files=sizes_of(listing.path)
            ),
        )

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By number, as get_last_checkpoint does, which looks at nothing else."""
        return tuple(
            sorted(candidates, key=lambda item: (item.step or 0, item.mtime_ns), reverse=True)
        )

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Every rule of a complete save, cheapest first; a stale witness is looked at in depth."""
        path, files = candidate.path, candidate.files
        try:
            _check_names(path, files)
            _check_witness(path, candidate.step)
            _check_rng(files, limits.world_size)
            doubts = _check_resume_set(path, files)
            stale = _stale_witness(files)
            deeper = (
                limits
                if not stale
                else Limits(level="full", time_left=limits.time_left, world_size=limits.world_size)
            )
            in_depth, more_doubts = _check_contents(path, files, deeper)
        except DamagedError as error:
            return Verdict(whole=False, why=str(error), how_checked=limits.level)
        except (UnreadableError, OSError) as error:
            return Verdict(whole=None, why=f"it cannot be checked: {error}", how_checked="quick")
        doubts += more_doubts
        if stale:
            doubts.insert(0, stale)
        how_checked = "full" if in_depth else "quick"
        if doubts:
            return Verdict(whole=None, why="; ".join(doubts), how_checked=how_checked)
        optimizer = "" if "optimizer.pt" in files else " (model only: the optimizer starts afresh)"
        return Verdict(
            whole=True,
            why=f"trainer state, weights and resume set agree{optimizer}",
            how_checked=how_checked,
        )


def _check_names(path: str, files: Iterable[str]) -> None:
    if os.path.basename(path).startswith("tmp-"):
        raise DamagedError("by its name a save that has not finished")
    if _MARKER in files:
        raise DamagedError(f"{_MARKER} is there: the save has not finished")
    unfinished = sorted(name for name in files if name.endswith(".tmp"))
    if unfinished:
        raise DamagedError(f"{unfinished[0]} is there: a file that was still being written")


def _check_witness(path: str, step: int | None) -> None:
    where = os.path.join(path, WITNESS)
    if not os.path.lexists(where):
        raise DamagedError(f"{WITNESS} is missing, which is written last")
    try:
        state = parse_json(read_capped(where, JSON_CAP_BYTES))
    except DamagedError as error:
        raise DamagedError(f"{WITNESS}: {error}") from error
    found = state.get("global_step") if isinstance(state, dict) else None
    if type(found) is not int or found != step:
        raise DamagedError(f"{WITNESS} says step {str(found)[:40]}, the directory {step}")


def _check_rng(files: Iterable[str], world_size: int | None) -> None:
    ranks = sorted(int(match[1]) for name in files if (match := _RANK.match(name)))
    if not ranks:
        return
    expected = max(ranks[-1] + 1, 2)
    # A single process writes rng_state.pth, so numbered files come from at least two ranks.
    if world_size is not None and world_size > 1:
        expected = max(expected, world_size)
    lacking = sorted(set(range(expected)).difference(ranks))
    if lacking:
        raise DamagedError(
            f"rng_state_{lacking[0]}.pth is missing: {len(ranks)} of {expected} ranks have saved"
        )


def _check_resume_set(path: str, files: Iterable[str]) -> list[str]:
    """Weights, optimizer, scheduler and random state are all there; doubts where that is open."""
    names = set(files)
    _check_adapters(names)
    if sharded.is_inside(names) or any(_SHARDED_FILE.match(name) for name in names):
        _check_beside_shards(path, names)
        return []
    if not any(_WEIGHTS.match(name) for name in names):
        raise DamagedError("the weights are missing")
    has_rng = any(name.startswith("rng_state") for name in names)
    lacking = [name for name in ("optimizer.pt", "scheduler.pt") if name not in names]
    if not has_rng:
        lacking.append("rng_state.pth")
    if not lacking:
        return []
    model_only = _saves_only_model(path)
    if len(lacking) < 3 or model_only is False:
        raise DamagedError(f"{lacking[0]} is missing")
    if model_only is None:
        return ["it holds only a model, and training_args.bin does not tell whether that is all"]
    return []


def _check_adapters(names: set[str]) -> None:
    """PEFT reads the settings of an adapter before its weights."""
    for name in sorted(names):
        folder, _, file = name.rpartition("/")
        settings = f"{folder}/adapter_config.json" if folder else "adapter_config.json"
        if _ADAPTER.match(file) and settings not in names:
            raise DamagedError(f"{settings} is missing beside {name}")


def _check_beside_shards(path: str, names: set[str]) -> None:
    """What the Trainer itself writes beside the shards of DeepSpeed or FSDP."""
    tags = {name.partition("/")[0] for name in names if name.startswith("global_step")}
    if tags:
        # Without the pointer DeepSpeed loads nothing.
        pointed = deepspeed.pointed_at(path)
        if pointed not in tags:
            raise DamagedError(f"{deepspeed.POINTER} does not name {max(tags)}")
    has_optimizer = tags or any(name.startswith("optimizer_") for name in names)
    lacking = ["scheduler.pt"] if not tags and "scheduler.pt" not in names else []
    lacking += [] if any(name.startswith("rng_state") for name in names) else ["rng_state.pth"]
    if has_optimizer and lacking:
        raise DamagedError(f"{lacking[0]} is missing")


def _saves_only_model(path: str) -> bool | None:
    """save_only_model by the opcodes of the pickle in training_args.bin, which is never run."""
    try:
        with closing(torch_zip.OpenZip(os.path.join(path, "training_args.bin"))) as archive:
            pickle_bytes = archive.read_member("/data.pkl", _ARGUMENTS_CAP_BYTES)
        armed = False
        for opcode, argument, _ in pickletools.genops(pickle_bytes):
            if opcode.name in ("NEWTRUE", "NEWFALSE") and armed:
                return opcode.name == "NEWTRUE"
            if "PUT" not in opcode.name and opcode.name != "MEMOIZE":
                armed = argument == "save_only_model"
    except (DamagedError, UnreadableError, OSError, ValueError, LookupError, struct.error):
        return None
    return None


def _stale_witness(files: dict[str, tuple[int, int]]) -> str | None:
    """A save that began over a complete older one leaves the old witness, and looks complete."""
    closed = {name: times[1] for name, times in files.items() if _DATA.match(name)}
    return stale_words(WITNESS, files[WITNESS], closed)


def _check_contents(path: str, files: Sizes, limits: Limits) -> tuple[bool, list[str]]:
    """Every file is right in itself; (whether all checksums were read, doubts).

    Raises:
        DamagedError: one is not.
    """
    in_depth = limits.level == "full"
    verdicts: list[tuple[str, Verdict]] = []
    for name in sorted(files):
        where = os.path.join(path, name)
        if name.endswith(safetensors.INDEX_SUFFIX):
            verdict = safetensors.check_index(os.path.dirname(where), os.path.basename(name))
        elif name.endswith(".bin.index.json"):
            verdict = _check_bin_index(os.path.dirname(where), os.path.basename(name))
        elif name.endswith(safetensors.SUFFIX):
            verdict = safetensors.check_file(where)
        elif _BY_TORCH_SAVE.match(name):
            verdict = torch_zip.check_file(where, limits)
            in_depth = in_depth and verdict.how_checked == "full"
        elif name in _READ_ON_RESUME:
            verdict = _check_json(where)
        else:
            continue
        verdicts.append((name, verdict))
    verdicts += sharded.check_inside(path, files, limits).items()
    return in_depth, doubts_of(verdicts)


def _check_bin_index(directory: str, index_name: str) -> Verdict:
    """The shards are there; each is checked as a file of its own."""
    weights = safetensors.read_index(os.path.join(directory, index_name))
    for shard in sorted(set(weights.values())):
        if not os.path.exists(os.path.join(directory, shard)):
            raise DamagedError(f"shard {shard} of {index_name} is missing")
    return Verdict(whole=True, why="all shards are there", how_checked="quick")


def _check_json(where: str) -> Verdict:
    try:
        parse_json(read_capped(where, JSON_CAP_BYTES))
    except DamagedError as error:
        return Verdict(whole=False, why=str(error), how_checked="quick")
    return Verdict(whole=True, why="it parses", how_checked="quick")
