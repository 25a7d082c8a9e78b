"""Ranks of one machine start one after the other: each waits some seconds more than the one before.

Folders are made, caches filled and extensions built before the next rank wants them.
"""

import os
import time

from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client import milestones, settings, slot

_WAITED = "WTRAIN_STAGGERED"
"""Set for programs that a rank starts: they have its number, and must not wait again."""


def wait():
    """To be called at the first watched import of a process."""
    # A launcher has no turn of its own, and its word must not be taken for that of its ranks.
    if slot.words[L.W_ROLE] == L.ROLE_RANK:
        settings.attempted("stagger-start", _wait)


def _wait(entry):
    local_rank = slot.words[L.W_LOCAL_RANK] - 1
    if local_rank < 0 or slot.words[L.W_LOCAL_WORLD] == 1:
        return False, "no launcher has started another rank on this machine"
    if os.environ.get(_WAITED) == str(slot.attempt):
        return True, "already waited in another process of this rank"
    os.environ[_WAITED] = str(slot.attempt)
    delay_s = int(entry.get("n", 10)) * local_rank
    place = milestones.begin("wait for the start of local rank %d" % local_rank)
    time.sleep(delay_s)
    milestones.end(place)
    return True, "began after %d s" % delay_s
