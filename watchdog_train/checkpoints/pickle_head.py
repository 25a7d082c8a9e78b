"""What the dictionary in a file of torch.save says of itself, as opcodes: nothing is unpickled."""

import itertools
import os
import pickletools
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from heapq import nlargest
from typing import Any

from msgspec.structs import replace

from watchdog_train.checkpoints.disk import DamagedError, Listing, UnreadableError, open_regular
from watchdog_train.checkpoints.formats import Candidate, a_file
from watchdog_train.checkpoints.torch_zip import OpenZip
from watchdog_train.client.layout import EPOCH_NAMES, MOST_COUNTED, STEP_NAMES
from watchdog_train.core.model import Value
from watchdog_train.core.pickle_data import silent

_HEAD_BYTES = 64 * 1024
_HEAD_OPCODES = 200
_EXAMINED_CAP = 200
"""Files that are opened in one directory: some trainings keep all their files."""
_PICKLE_BYTES = 4 * 1024 * 1024
_OF_TRAINING = re.compile(r"(?i)optimizer|(^|[._-])(optim|opt$|opt_|sched|scaler|train|rng)")
"""Keys that weights alone do not have."""
_BOOLEANS = {"NEWTRUE": True, "NEWFALSE": False}
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


class Head(Value):
    words: tuple[Any, ...]
    """Arguments of the first opcodes in their order; None for one that has none (a mark, a
    dictionary): a key is followed by its value where that is a number or a text."""
    offset: int
    """Of its pickle in the file."""

    def number_after(self, key: str) -> int | None:
        pairs = itertools.pairwise(self.words)
        return next((after for word, after in pairs if word == key and type(after) is int), None)


def read_head(path: str) -> Head | None:
    """The beginning of the zip's first entry; None if that is no pickle.

    A zip that was cut short has lost its table of contents, but not this.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_HEAD_BYTES)
    except (UnreadableError, OSError):
        return None
    if len(data) < _LOCAL_HEADER.size:
        return None
    fields = _LOCAL_HEADER.unpack_from(data)
    name_end = _LOCAL_HEADER.size + fields[9]
    name = data[_LOCAL_HEADER.size : name_end]
    if fields[0] != b"PK\x03\x04" or fields[3] != 0 or not name.endswith(b"/data.pkl"):
        return None
    offset = name_end + fields[10]
    return Head(words=words_of(data[offset:], _HEAD_OPCODES + 1), offset=offset)


def known_by_head(
    listing: Listing,
    name: str,
    suffixes: tuple[str, ...],
    counters_of: Callable[[str, Head], dict[str, int] | None],
) -> tuple[Candidate, ...]:
    """The newest files of a directory that a format recognises by their beginning.

    `counters_of` gives its step or epoch by their names, None if it is none of the format's.
    """
    files = [one for one in listing.entries if one.is_file and one.name[0] != "."]
    entries = [one for one in files if one.name.endswith(suffixes)]
    found = []
    for entry in nlargest(_EXAMINED_CAP, entries, key=lambda entry: entry.mtime_ns):
        path = os.path.join(listing.path, entry.name)
        head = read_head(path)
        counted = counters_of(path, head) if head is not None else None
        if counted is not None:
            candidate = a_file(listing, entry, name, step_of(counted))
            found.append(replace(candidate, counters=counted))
    return tuple(found)


@silent()
def words_of(data: bytes, most: int | None = None) -> tuple[Any, ...]:
    """Arguments of the opcodes of a pickle in their order, as far as it can be read.

    True and False for their opcodes, None for others without an argument. A pickle that ends early,
    or is damaged, is no error.
    """
    words = []
    with suppress(ValueError, LookupError, struct.error, OverflowError):
        for opcode, argument, _ in itertools.islice(pickletools.genops(data), most):
            if "PUT" not in opcode.name and opcode.name != "MEMOIZE":
                words.append(_BOOLEANS.get(opcode.name, argument))
    return tuple(words)


def contents(path: str) -> tuple[dict[str, int], bool]:
    """Step and epoch by their names in the file; and whether it holds weights alone.

    Nothing if the file is incomplete, or no dictionary.
    """
    try:
        with closing(OpenZip(path)) as archive:
            found = _top_values(archive.read_member("/data.pkl", _PICKLE_BYTES))
    except (DamagedError, UnreadableError, OSError, ValueError, LookupError, RuntimeError):
        return {}, False
    numbers = {name: found.get(name) for name in (*STEP_NAMES, *EPOCH_NAMES)}
    ints = {name: number for name, number in numbers.items() if type(number) is int}
    counted = {name: number for name, number in ints.items() if 0 <= number < MOST_COUNTED}
    is_full = any(map(_OF_TRAINING.search, found))
    return counted, bool(found) and not counted and not is_full


def counters(path: str) -> dict[str, int]:
    """Step and epoch by their names in the file; empty if it cannot be read."""
    return contents(path)[0]


def step_of(counted: Mapping[str, int]) -> int | None:
    return next((counted[name] for name in STEP_NAMES if name in counted), None)


def is_behind(counted: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether a training had made less progress: no number of both is higher, and one is lower.

    A step that is counted per epoch proves nothing beside a higher epoch.
    """
    pairs = [(counted[name], other[name]) for name in counted if name in other]
    return all(one <= two for one, two in pairs) and any(one < two for one, two in pairs)


@silent()
def _top_values(data: bytes) -> dict[Any, Any]:
    """The outermost dictionary, with its plain values; the stack is followed."""
    found: dict[Any, Any] = {}
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        before, after = opcode.stack_before, opcode.stack_after
        if opcode.name == "MARK":
            marks.append(len(stack))
            continue
        if opcode.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif "PUT" in opcode.name:
            memo[argument] = stack[-1]
        elif "GET" in opcode.name:
            stack.append(memo[argument])
        else:
            down = marks.pop() if pickletools.markobject in before else len(stack) - len(before)
            taken = stack[down:]
            del stack[down:]
            if opcode.name in ("SETITEM", "SETITEMS"):
                if opcode.name == "SETITEM":
                    stack.append(taken.pop(0))
                if len(stack) == 1:
                    pairs = zip(taken[::2], taken[1::2], strict=False)
                    found.update((key, value) for key, value in pairs if isinstance(key, str))
            elif opcode.name in ("APPENDS", "ADDITEMS", "BUILD", "APPEND"):
                if opcode.name in ("BUILD", "APPEND"):
                    stack.append(taken[0])
            else:
                stack.extend([argument] * len(after))
    return found
