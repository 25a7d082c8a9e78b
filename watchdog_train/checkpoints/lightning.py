"""Checkpoints of a Lightning Trainer: one zip of torch.save each. Nothing in them is unpickled.

ModelCheckpoint names its files as the user likes, so a file is known by what it holds: the first
keys of its dictionary are the epoch, the step and the version of Lightning.
"""

from __future__ import annotations

import os
from contextlib import closing

from watchdog_train.checkpoints.files import (
    DamagedError,
    Entry,
    Listing,
    UnreadableError,
    open_regular,
)
from watchdog_train.checkpoints.formats import Candidate, Limits, Verdict
from watchdog_train.checkpoints.pickle_head import Head, read_head
from watchdog_train.checkpoints.torch_zip import OpenZip, check_file

NAME = "lightning"
_SUFFIXES = (".ckpt", ".pt", ".pth")
_EXAMINED_CAP = 200
"""Files that are opened in one directory, newest first: save_top_k=-1 keeps them all."""
_VERSION_KEY = "pytorch-lightning_version"
_OPTIMIZERS = (b"\x10\x00\x00\x00optimizer_states", b"\x8c\x10optimizer_states")
"""The key that a file of weights alone lacks, as protocols 2 and 4 of pickle write it."""
_PICKLE_CAP_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


class LightningFormat:
    """Files that Trainer.save_checkpoint and ModelCheckpoint write."""

    name = NAME
    owns_directory = False
    resume_hint = (
        "by itself (the hook in Trainer.fit), or trainer.fit(model, ckpt_path={checkpoint})"
    )

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """Full checkpoints; of weights alone (save_weights_only) a fit cannot go on."""
        entries = [entry for entry in listing.entries if _may_be_one(entry)]
        entries.sort(key=lambda entry: entry.mtime_ns, reverse=True)
        found = []
        for entry in entries[:_EXAMINED_CAP]:
            path = os.path.join(listing.path, entry.name)
            head = read_head(path)
            if head is None or _VERSION_KEY not in head.words or _holds_only_weights(path, head):
                continue
            step = head.number_after("global_step")
            step = step if step is not None and step >= 0 else None
            found.append(
                Candidate(
                    path=path,
                    format=NAME,
                    step=step,
                    order=step,
                    files={entry.name: (entry.size, entry.mtime_ns)},
                )
            )
        return tuple(found)

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By time, as `ckpt_path="last"` does: a second fit into one directory counts from zero."""
        return tuple(
            sorted(candidates, key=lambda item: (item.mtime_ns, item.step or 0), reverse=True)
        )

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Structure of the zip; at level full its checksums."""
        return check_file(candidate.path, limits)


def _may_be_one(entry: Entry) -> bool:
    # The tuner keeps its state in .lr_find_*.ckpt and .scale_batch_size_*.ckpt for a while.
    hidden = entry.name.startswith(".")
    return entry.kind == "file" and entry.name.endswith(_SUFFIXES) and not hidden


def _holds_only_weights(path: str, head: Head) -> bool:
    """Whether no state of an optimizer is in it, which fit() needs; False where it is damaged."""
    try:
        with closing(OpenZip(path)) as archive:
            sizes = [m.file_size for m in archive.members if m.filename.endswith("/data.pkl")]
        left = min(sizes)
        if left > _PICKLE_CAP_BYTES:
            return False
        # Not through zipfile, which refuses a file that was saved without checksums.
        with open_regular(path) as file:
            file.seek(head.offset)
            before = b""
            while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
                if any(key in before + chunk for key in _OPTIMIZERS):
                    return False
                before, left = chunk[-32:], left - len(chunk)
    except (DamagedError, UnreadableError, OSError):
        return False
    return left == 0
