"""Checkpoints that only this team writes, for wtrain. See docs/plugins.md.

A directory sim-N holds field.bin and, written last, DONE with the size of field.bin in bytes.
"""

from __future__ import annotations

import os
import re

from watchdog_train.checkpoints.disk import DamagedError, Listing, read_capped
from watchdog_train.checkpoints.formats import Candidate, Format, Limits, Verdict, a_directory

DIRECTORY = re.compile(r"sim-(\d+)")


def find(listing: Listing) -> tuple[Candidate, ...]:
    """The directory itself, where its name and its files are the simulator's."""
    match = DIRECTORY.fullmatch(os.path.basename(listing.path))
    files = listing.sizes(lambda name: name in ("field.bin", "DONE"))
    if match is None or not files:
        return ()
    return a_directory(listing, "simulator", files, int(match[1]))


def check(candidate: Candidate, _: Limits) -> Verdict:
    """Whether the size in DONE is that of field.bin."""
    if "DONE" not in candidate.files:
        raise DamagedError("DONE is missing, which is written last")
    told = read_capped(os.path.join(candidate.path, "DONE"), 100).decode()
    size_bytes = candidate.files["field.bin"][0]
    if told != str(size_bytes):
        raise DamagedError(f"field.bin has {size_bytes} bytes, DONE says {told}")
    return Verdict(whole=True, why=f"field.bin has the {size_bytes} bytes that DONE says")


FORMAT = Format(
    name="simulator", resume_hint="simulate --from {checkpoint}", find=find, check=check
)
