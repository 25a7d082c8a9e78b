"""The content of a pickle without running it: no import, no call, no object is made.

A foreign pickle is a program. This reads its opcodes as data: what a global names becomes a
`Symbol`, what a call or a class would make becomes a `Made`, and both are plain tuples.
"""

from __future__ import annotations

import pickletools
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

OPCODES_CAP = 20_000_000
"""A checkpoint's metadata takes about 40 a tensor shard."""


class DamagedPickleError(ValueError):
    """It ends too early or contradicts itself; the text says how."""


class UnreadablePickleError(Exception):
    """It is too long, or not plain data, which does not mean damaged; the text says how."""


class Symbol(NamedTuple):
    """The name under which a global would have been looked up."""

    module: str
    name: str


class Made(NamedTuple):
    """The result of a call that was not made, with the state it would have been given."""

    by: Any
    arguments: Any
    state: dict[Any, Any]


_MARK = object()
"""The bottom of a group on the stack."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ARGUMENT = frozenset(
    (
        "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
        "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    )
)  # fmt: skip
_NOTHING = frozenset(("PROTO", "FRAME", "STOP"))


@contextmanager
def silent() -> Iterator[None]:
    """Suppress warnings about escapes in the text of a damaged pickle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@silent()
def read(data: bytes, most_opcodes: int = OPCODES_CAP) -> Any:
    """The value that a pickle describes.

    Raises:
        DamagedPickleError: it ends too early or contradicts itself.
        UnreadablePickleError: it uses an opcode that metadata does not need, or is too long.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > most_opcodes:
                raise UnreadablePickleError("its pickle is longer than what is read of it")
            machine.take(opcode.name, argument)
        return machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, struct.error, AttributeError) as error:
        raise DamagedPickleError(f"its pickle is damaged ({type(error).__name__})") from error
    except (RecursionError, MemoryError, OverflowError) as error:
        raise UnreadablePickleError(
            f"its pickle cannot be read ({type(error).__name__})"
        ) from error


class _Machine:
    """The stack and the memo of a pickle, filled with data only."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def take(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _ARGUMENT:
            stack.append(argument)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name not in _NOTHING and not self._collect(name):
            self._make(name, argument)

    def _collect(self, name: str) -> bool:
        """Opcodes that fill containers; whether it was one."""
        stack = self.stack
        match name:
            case "TUPLE":
                stack.append(tuple(self._group()))
            case "LIST" | "FROZENSET":
                stack.append(self._group())
            case "DICT":
                stack.append(_pairs(self._group()))
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._update([key, value])
            case "SETITEMS":
                self._update(self._group())
            case "APPEND":
                self._extend([stack.pop()])
            case "APPENDS" | "ADDITEMS":
                self._extend(self._group())
            case _:
                return False
        return True

    def _make(self, name: str, argument: Any) -> None:
        """Opcodes that would look up, call or change something."""
        stack = self.stack
        match name:
            case "GLOBAL":
                module, _, attribute = str(argument).partition(" ")
                stack.append(Symbol(module, attribute))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(Symbol(str(module), str(attribute)))
            case "REDUCE" | "NEWOBJ":
                arguments, by = stack.pop(), stack.pop()
                stack.append(Made(by, arguments, {}))
            case "NEWOBJ_EX":
                _, arguments, by = stack.pop(), stack.pop(), stack.pop()
                stack.append(Made(by, arguments, {}))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], Made) and isinstance(state, dict):
                    stack[-1].state.update(state)
            case "BINPERSID":
                stack.append(Made(Symbol("", "persistent"), stack.pop(), {}))
            case "POP":
                stack.pop()
            case _:
                raise UnreadablePickleError(f"its pickle uses {name}, which metadata does not need")

    def _update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        (target if isinstance(target, dict) else target.state).update(_pairs(values))

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):  # items of a made object are not needed
            self.stack[-1].extend(values)

    def _group(self) -> list[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        values.reverse()
        return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """Keys that cannot be looked up by their value are looked up by their place."""
    pairs = {}
    for position in range(0, len(values) - 1, 2):
        key = values[position]
        # A made object holds dictionaries; its identity suffices, no caller looks it up by value.
        pairs[key if isinstance(key, (str, int, bytes)) else (id(key), position)] = values[
            position + 1
        ]
    return pairs
