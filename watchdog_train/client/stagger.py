"""Ranks of one machine begin one after the other: each waits for the one before it.

It waits until that one meets the others or trains: folders are made, caches filled and extensions
built before. It must never wait longer than the plan says, and must not change what is imported.
"""

import os
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, settings, slot

_LOOK_S = 0.2
_BEFORE = (L.PHASE_UNKNOWN, L.PHASE_STARTUP, L.PHASE_DOWNLOAD, L.PHASE_LOAD)
_MEETS = b'"init_process_group"'


def wait():
    """To be called at the first watched import of a process."""
    # A launcher has no turn of its own, and its word must not be taken for that of its ranks.
    if slot.words[L.W_ROLE] == L.ROLE_RANK:
        settings.attempted("stagger-start", _wait)


def _wait(entry):
    local_rank = slot.words[L.W_LOCAL_RANK] - 1
    if local_rank < 0 or slot.words[L.W_LOCAL_WORLD] == 1:
        return False, "no launcher has started another rank on this machine"
    if local_rank == 0:
        return True, "local rank 0 begins"
    if not _is_first_of(local_rank):
        return True, "already waited in another process of this rank"
    began = time.monotonic()
    limit_s = int(entry.get("n", 20)) * local_rank
    place = milestones.begin("wait for local rank " + str(local_rank - 1))
    seen = None
    passed = False
    while not passed and time.monotonic() - began < limit_s:
        time.sleep(_LOOK_S)
        now = _slot_of(local_rank - 1)
        passed = _is_past(now) if now is not None else seen is not None
        seen = now or seen
    milestones.end(place)
    waited = "%.1f s" % (time.monotonic() - began)
    if not passed:
        return True, "began after " + waited + ", local rank %d was not yet so far" % (
            local_rank - 1
        )
    return True, "began " + waited + " later, after local rank " + str(local_rank - 1)


def _is_first_of(local_rank):
    """Programs that a rank starts have its number, too."""
    name = "staggered-%d-%d" % (slot.attempt, local_rank)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | slot.SAFE_FLAGS
        os.close(os.open(os.path.join(slot.slot_dir, name), flags, 0o600))
    except FileExistsError:
        return False
    return True


def _slot_of(local_rank):
    """(path without its suffix, words) of the slot of a rank of this machine, None without one."""
    for name in os.listdir(slot.slot_dir):
        if not name.endswith(L.SLOT_SUFFIX):
            continue
        path = os.path.join(slot.slot_dir, name)
        try:
            with open(path, "rb") as file:
                words = memoryview(file.read(L.SLOT_BYTES)).cast("Q")
            if (
                words[L.W_LOCAL_RANK] == local_rank + 1
                and words[L.W_ATTEMPT] == slot.attempt
                and words[L.W_ROLE] == L.ROLE_RANK
            ):
                return path[: -len(L.SLOT_SUFFIX)], words
        except (OSError, TypeError, IndexError):
            continue
    return None


def _is_past(found):
    path, words = found
    if words[L.W_PHASE] not in _BEFORE:
        return True
    try:
        with open(path + L.NOTE_SUFFIX, "rb") as file:
            return _MEETS in file.read()
    except OSError:
        return False
