"""The supervisor's reading of slots, notes and save records that the training has written.

All of it is untrusted input: every read has a cap, links are not followed, and what does not
fit is skipped and named, never believed.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import SaveRecord, SlotReading, Value, newest_checkpoint
from watchdog_train.core.notices.notes import NOTE_BYTES, Note, decode_note
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.trusted_files import names, open_regular, read_regular

SAVES_BYTES = 32 << 20
SAVES_FILES = 1024
PROBLEMS = 32

_WORDS = struct.Struct(f"={layout.SLOT_WORDS}Q")


class SlotScan(Value):
    readings: tuple[SlotReading, ...]
    """By pid."""
    problems: tuple[str, ...]
    """Slots that could not be read, and why; at most 32."""


_save_decoder = msgspec.json.Decoder(SaveRecord)


def read_slots(slot_dir: Path) -> SlotScan:
    """A directory that is gone has none."""
    readings: list[SlotReading] = []
    problems: list[str] = []
    for pid, name in _numbered(slot_dir, layout.SLOT_SUFFIX)[: layout.SLOT_MAX_FILES]:
        data = _read(os.path.join(slot_dir, name), layout.SLOT_BYTES)
        if data is None:
            continue
        answer = decode(pid, data)
        if isinstance(answer, SlotReading):
            readings.append(answer)
        elif answer is not None and len(problems) < PROBLEMS:
            problems.append(f"{name}: {answer}")
    return SlotScan(readings=tuple(readings), problems=tuple(problems))


def read_note(slot_dir: Path, pid: int) -> Note | None:
    """The side file of a process, None without one that is valid."""
    data = _read(os.path.join(slot_dir, f"{pid}{layout.NOTE_SUFFIX}"), NOTE_BYTES + 1)
    return decode_note(data, pid) if data is not None else None


def newest_noted_save(
    run: RunDirectory, state: State, renamed: Callable[[SaveRecord], SaveRecord | None]
) -> SaveRecord | None:
    """The newest save that a hook noted in this run and that still exists.

    `renamed`: where a save is now whose path is gone; None: nowhere.
    """
    for attempt in reversed(state.attempts):
        saves = read_saves(run.attempt(attempt.attempt), 20)
        there = (save if os.path.exists(save.path) else renamed(save) for save in saves)
        if (save := newest_checkpoint(filter(None, there))) is not None:
            return save
    return None


def read_saves(attempt_dir: Path, cap: int = 1000) -> tuple[SaveRecord, ...]:
    """The newest `cap` save records of an attempt, oldest first."""
    records: list[SaveRecord] = []
    files = [name for name in _names(attempt_dir) if name.endswith(".jsonl")]
    for name in [name for name in files if name.startswith("saves.")][:SAVES_FILES]:
        data = _read(attempt_dir / name, SAVES_BYTES, from_end=True) or b""
        records += filter(None, map(_save, data.splitlines()[-2 * cap :]))
    records.sort(key=lambda record: record.t)
    closed: set[object] = set()
    found: list[SaveRecord] = []
    for record in reversed(records):
        # An open file is noted at once, and again when it is closed, maybe under another name.
        keys = {record.path, *record.inodes[:1]}
        if record.files or not keys & closed:
            found.append(record)
        closed |= keys if record.files else set()
    return tuple(found[:cap][::-1]) if cap > 0 else ()


def sweep_slots(slot_dir: Path, is_alive: Callable[[int, int], bool | None]) -> None:
    """Remove the slots of exited processes; notes and dumps with them stay evidence.

    `is_alive` takes pid and start (0: unknown start); None (unknown) keeps the slot.
    """
    for pid, name in _numbered(slot_dir, layout.SLOT_SUFFIX):
        data = _read(slot_dir / name, layout.SLOT_BYTES)
        answer = decode(pid, data) if data is not None else None
        start = answer.start if isinstance(answer, SlotReading) else 0
        if is_alive(pid, start) is False:
            with suppress(OSError):
                (slot_dir / name).unlink()


def decode(pid: int, data: bytes) -> SlotReading | str | None:
    """The reading; words about what is wrong; None for a slot that is still being made."""
    if len(data) < _WORDS.size:
        return f"{len(data)} bytes instead of {layout.SLOT_BYTES}"
    words = _WORDS.unpack_from(data)
    magic = words[layout.W_MAGIC]
    if magic == 0:
        return None
    if magic != layout.MAGIC:
        if magic >> 32 == layout.MAGIC >> 32:
            return f"version {magic & 0xFFFFFFFF}, this wtrain reads version {layout.VERSION}"
        return "not a heartbeat slot"
    if words[layout.W_PID] != pid:
        return f"says that it belongs to pid {words[layout.W_PID]}"
    return _reading(words)


def _reading(words: tuple[int, ...]) -> SlotReading:
    asked = words[layout.W_CAN_BE_ASKED]
    role = words[layout.W_ROLE]
    phase = words[layout.W_PHASE]
    known: dict[str, Any] = {name: words[at] for name, at in _AS_IT_IS}
    known |= {name: words[at] - 1 if words[at] else None for name, at in _LESS_ONE}
    return SlotReading(
        **known,
        role=_ROLES[role] if role < len(_ROLES) else "unknown",
        world_size=words[layout.W_WORLD_SIZE] or None,
        local_world=words[layout.W_LOCAL_WORLD] or None,
        progress=tuple(words[word] for word in layout.PROGRESS_WORDS),
        step=layout.step_of(words),
        own_began=_own_began(words),
        load_begun=bool(words[layout.W_LOAD_BEGUN] & 1),
        asks_for_path=bool(words[layout.W_LOAD_BEGUN] & 2),
        total_steps=_total_steps(words),
        phase=_PHASES[phase] if phase < len(_PHASES) else "unknown",
        last_beat_ns=max(words[word] for word in (layout.W_LAST_BEAT_NS, *layout.ARRIVAL_WORDS)),
        exiting=bool(words[layout.W_EXIT]),
        failed=words[layout.W_EXIT] == layout.EXIT_FAILED,
        fault_handler_signal=words[layout.W_FAULT_HANDLER],
        can_save=bool(asked & 1),
        can_stop=bool(asked & 2),
        loss=_double(words[layout.W_LOSS]),
        samples_s=_double(words[layout.W_SAMPLES_PER_S]),
    )


def _words_of(*names: str) -> list[tuple[str, int]]:
    return [(name, getattr(layout, f"W_{name.upper()}")) for name in names]


_AS_IT_IS = _words_of(
    "pid", "start", "attempt", "phase_entries", "milestone", "batch_ns", "backward_ns",
    "backward_end_ns", "expect_until_ns", "saves_begun", "saves_ended", "save_answered",
    "stop_answered", "save_refused", "stop_refused", "dump_answered", "settings_taken",
    "train_ordinal", "continued",
)  # fmt: skip
_LESS_ONE = _words_of("rank", "local_rank", "worker", "resumed_step", "first_step", "began_anew")
"""Words in which zero means "not set"."""
_ROLES: tuple[Any, ...] = layout.ROLES
_PHASES: tuple[Any, ...] = layout.PHASES


def _own_began(words: tuple[int, ...]) -> int | None:
    """The step after the first one of this process, by a count that the training keeps itself."""
    if words[layout.W_FIRST_STEP]:
        return words[layout.W_FIRST_STEP] - 1
    if words[layout.W_TRAIN_ORDINAL]:
        return None
    if words[layout.W_FRAMEWORK_STEP]:
        done = max(words[layout.W_OPTIMIZER_STEPS], words[layout.W_BEATS])
        return words[layout.W_FRAMEWORK_STEP] - done
    return words[layout.W_BAR_OFFSET] or None


def _total_steps(words: tuple[int, ...]) -> int | None:
    """By the framework or the script, else by the progress bar of a plain loop."""
    by_bar = 0 if words[layout.W_FRAMEWORK_STEP] else words[layout.W_BAR_TOTAL]
    return words[layout.W_TOTAL_STEPS] or by_bar or None


def _double(word: int) -> float | None:
    if not word:
        return None
    value: float = struct.unpack("=d", struct.pack("=Q", word))[0]
    return value if math.isfinite(value) else None


def _save(line: bytes) -> SaveRecord | None:
    try:
        return _save_decoder.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _names(directory: Path) -> list[str]:
    try:
        return sorted(names(directory))
    except OSError:
        return []


def _numbered(directory: Path, suffix: str) -> list[tuple[int, str]]:
    found = []
    for name in _names(directory):
        stem = name.removesuffix(suffix)
        if stem != name and stem.isascii() and stem.isdigit() and len(stem) < 10:
            found.append((int(stem), name))
    return sorted(found)


def _read(path: str | Path, cap: int, *, from_end: bool = False) -> bytes | None:
    found = read_regular(path, cap, from_end=from_end)
    return None if found is None else found[0]


MOST_FILES = 128
"""More judged processes than this are not followed to their exit."""


class LastWords:
    """Slots held open, by pid.

    A client removes its slot at exit. An open file still shows what it wrote after the last
    sample, most of all the last step of a training.
    """

    def __init__(self, slot_dir: Path | None) -> None:
        self._slot_dir = slot_dir
        self._open: dict[int, int] = {}

    def follow(self, pids: Iterable[int]) -> None:
        if self._slot_dir is None:
            return
        for pid in pids:
            if pid in self._open or len(self._open) >= MOST_FILES:
                continue
            with suppress(OSError):
                self._open[pid] = open_regular(self._slot_dir / f"{pid}{layout.SLOT_SUFFIX}")

    def read(self) -> dict[int, SlotReading]:
        """The present readings of the held slots, also of exited processes."""
        found = {pid: self.of(pid) for pid in self._open}
        return {pid: said for pid, said in found.items() if said is not None}

    def of(self, pid: int) -> SlotReading | None:
        """The reading of one process; None where no slot is held."""
        descriptor = self._open.get(pid)
        if descriptor is not None:
            with suppress(OSError):
                os.lseek(descriptor, 0, os.SEEK_SET)
                answer = decode(pid, os.read(descriptor, layout.SLOT_BYTES))
                if isinstance(answer, SlotReading):
                    return answer
        return None

    def forget(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
