"""The first words of the dictionary in a file of torch.save, as opcodes: nothing is unpickled."""

from __future__ import annotations

import pickletools
import struct
from typing import Any

from watchdog_train.checkpoints.files import UnreadableError, open_regular
from watchdog_train.core.model import Value

_HEAD_BYTES = 64 * 1024
_HEAD_OPCODES = 200
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


class Head(Value, frozen=True, kw_only=True):
    """The beginning of a checkpoint's dictionary."""

    words: tuple[Any, ...]
    """Arguments of the first opcodes in their order; None for one that has none (a mark, a
    dictionary): a key is followed by its value where that is a number or a text."""
    offset: int
    """Of its pickle in the file."""

    def number_after(self, key: str) -> int | None:
        """The whole number that follows the first such word, None when there is none."""
        for word, following in zip(self.words, self.words[1:], strict=False):
            if word == key and type(following) is int:
                return following
        return None

    def has_in_turn(self, key: str, other: str) -> bool:
        """Whether one key, its number and the other key follow each other."""
        triples = zip(self.words, self.words[1:], self.words[2:], strict=False)
        return any(
            (word, after) == (key, other) and type(number) is int for word, number, after in triples
        )


def read_head(path: str) -> Head | None:
    """What the first entry of the zip begins with; None when that is no pickle.

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
    return Head(words=_words(data[offset:]), offset=offset)


def _words(data: bytes) -> tuple[Any, ...]:
    words = []
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > _HEAD_OPCODES:
                break
            if "PUT" not in opcode.name and opcode.name != "MEMOIZE":
                words.append(argument)
    except (ValueError, LookupError, struct.error, OverflowError):
        pass  # the head ends in the middle of it, or it is damaged: what was read counts
    return tuple(words)
