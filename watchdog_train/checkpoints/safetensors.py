"""Safetensors files, single or sharded. The format has no checksum: never called proven."""

import math
import os
import re
import struct
from typing import Any

from watchdog_train.checkpoints import disk, formats
from watchdog_train.checkpoints.disk import DamagedError, UnreadableError
from watchdog_train.checkpoints.names import step_in_name

NAME = "safetensors"
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_HEADER_CAP_BYTES = 16 * 1024 * 1024
_SHARD_NAME = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""The size of a tensor of another type is not checked."""


def read_tensor_names(path: str) -> frozenset[str]:
    """The tensors of a file whose header agrees with its size to the byte."""
    with disk.open_regular(path) as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        prefix = file.read(8)
        if len(prefix) < 8:
            raise DamagedError(f"cut short: {size_bytes} bytes are less than its length field")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes < 2 or 8 + header_bytes > size_bytes:
            sizes = f"its header claims {header_bytes} bytes, the file has {size_bytes}"
            raise DamagedError(f"cut short: {sizes}")
        if header_bytes > _HEADER_CAP_BYTES:
            raise UnreadableError(f"its header of {header_bytes} bytes is too large to read")
        header = disk.parse_json(file.read(header_bytes))
    if not isinstance(header, dict):
        raise DamagedError("its header is not a table of tensors")
    spans = sorted(_span(name, entry) for name, entry in header.items() if name != "__metadata__")
    position = 0
    for begin, end, name in spans:
        if begin != position:
            raise DamagedError(f"a gap or an overlap before tensor {name[:80]!r}")
        position = end
    told_bytes = 8 + header_bytes + position
    if told_bytes != size_bytes:
        raise DamagedError(f"its header describes {told_bytes} bytes, the file has {size_bytes}")
    return frozenset(name for _, _, name in spans)


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    wrong = DamagedError(f"its header is wrong at tensor {name[:80]!r}")
    try:
        begin, end = entry["data_offsets"]
        shape, bits = entry["shape"], _DTYPE_BITS.get(entry["dtype"])
        numbers = (begin, end, *shape)
    except (KeyError, TypeError, ValueError) as error:
        raise wrong from error
    if len(shape) > 64 or not all(type(one) is int and 0 <= one < 2**63 for one in numbers):
        raise wrong
    if end < begin or (bits is not None and math.prod(shape) * bits != (end - begin) * 8):
        raise DamagedError(f"size and shape of tensor {name[:80]!r} disagree")
    return begin, end, name


def check_file(path: str) -> formats.Verdict:
    why = f"header and size agree on {len(read_tensor_names(path))} tensors"
    return formats.Verdict(whole=True, why=f"{why} (the format has no checksum)")


def check_index(path: str) -> formats.Verdict:
    """Every shard that the index names is there; of safetensors it holds its tensors."""
    index, shards = disk.read_json(path), dict[str, set[str]]()
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise DamagedError("it has no weight map")
    for tensor, shard in weights.items():
        if not disk.is_plain_name(shard):
            raise DamagedError("it names a shard outside of its directory")
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in sorted(shards.items()):
        where = os.path.join(os.path.dirname(path), shard)
        if not os.path.exists(where):
            raise DamagedError(f"shard {shard} is missing")
        if not shard.endswith(SUFFIX):
            continue  # checked as a file of its own
        try:
            lacking = sorted(tensors - read_tensor_names(where))
        except (DamagedError, UnreadableError) as error:
            raise type(error)(f"shard {shard}: {error}") from error
        if lacking:
            raise DamagedError(f"shard {shard}: tensor {lacking[0][:80]!r} is not in it")
    why = f"all {len(shards)} shards are there and agree with the index"
    return formats.Verdict(whole=True, why=why)


def _find(listing: disk.Listing) -> tuple[formats.Candidate, ...]:
    shards = listing.sizes(lambda name: name.endswith(INDEX_SUFFIX) or _SHARD_NAME.search(name))
    found = list(formats.a_directory(listing, NAME, shards))
    for entry in listing.entries:
        name = entry.name.removesuffix(".tmp")
        if entry.is_file and name.endswith(SUFFIX) and not _SHARD_NAME.search(name):
            step = step_in_name(name.removesuffix(SUFFIX))
            found.append(formats.a_file(listing, entry, NAME, step))
    return tuple(found)


def _check(candidate: formats.Candidate, _limits: formats.Limits) -> formats.Verdict:
    """Header and size agree; with an index also every shard. Level full adds nothing."""
    files = candidate.files
    index = next((name for name in files if name.endswith(INDEX_SUFFIX)), None)
    if index is not None:
        verdict = check_index(os.path.join(candidate.path, index))
        stale = formats.stale_words(index, files[index], files, lambda name: name != index)
        return formats.of_parts((), "quick", verdict.why, (stale,))
    if os.path.isdir(candidate.path):
        raise DamagedError("shards without an index, which is written last")
    return check_file(candidate.path)


FORMAT = formats.Format(
    name=NAME,
    resume_hint='--resume-arg "--resume {checkpoint}" with the option of your script '
    "(the format holds weights only: the optimizer starts afresh)",
    find=_find,
    check=_check,
)
