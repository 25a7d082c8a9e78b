"""Checkpoints of timm and of ultralytics: files of torch.save that are counted by epochs.

From the sources of timm 1.0.31 (CheckpointSaver) and ultralytics 8.4.190 (BaseTrainer.save_model,
strip_optimizer). Both are known by the first keys of their dictionary, whatever the file is called.
"""

from __future__ import annotations

import os

from watchdog_train.checkpoints.files import Entry, Listing
from watchdog_train.checkpoints.formats import Candidate, Limits, Verdict
from watchdog_train.checkpoints.pickle_head import Head, read_head
from watchdog_train.checkpoints.torch_zip import check_file

TIMM, ULTRALYTICS = "timm", "ultralytics"
_TIMM_SUFFIX = ".pth.tar"
_TIMM_UNFINISHED = ("tmp.pth.tar", "recovery_tmp.pth.tar")
_EXAMINED_CAP = 200
"""Files that are opened in one directory, newest first."""


def _newest(listing: Listing, suffix: str) -> list[Entry]:
    entries = [
        entry
        for entry in listing.entries
        if entry.kind == "file" and entry.name.endswith(suffix) and not entry.name.startswith(".")
    ]
    entries.sort(key=lambda entry: entry.mtime_ns, reverse=True)
    return entries[:_EXAMINED_CAP]


def _candidate(directory: str, entry: Entry, name: str, epoch: int) -> Candidate:
    # Its number is an epoch: of steps neither format says anything.
    return Candidate(
        path=os.path.join(directory, entry.name),
        format=name,
        step=None,
        order=epoch,
        files={entry.name: (entry.size, entry.mtime_ns)},
    )


class TimmFormat:
    """Files of timm's CheckpointSaver: last, checkpoint-E, recovery-E-B, model_best."""

    name = TIMM
    owns_directory = False
    resume_hint = '--resume-arg "--resume {checkpoint}"'

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """Files whose dictionary begins as timm's does."""
        found = []
        for entry in _newest(listing, _TIMM_SUFFIX):
            head = read_head(os.path.join(listing.path, entry.name))
            if head is not None and head.has_in_turn("epoch", "arch"):
                epoch = head.number_after("epoch") or 0
                found.append(_candidate(listing.path, entry, TIMM, epoch))
        return tuple(found)

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By time: a recovery file lies between two epochs and says the one that it began in."""
        return tuple(
            # checkpoint-E and model_best are hard links to what `last` was when they were made.
            sorted(candidates, key=lambda item: (item.mtime_ns, _is_last(item)), reverse=True)
        )

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """Its name, the structure of the zip, at level full its checksums."""
        if os.path.basename(candidate.path) in _TIMM_UNFINISHED:
            why = "by its name a save that has not finished"
            return Verdict(whole=False, why=why, how_checked="quick")
        return check_file(candidate.path, limits)


class UltralyticsFormat:
    """Files of ultralytics' trainer: last, best, epochE; all overwritten in place."""

    name = ULTRALYTICS
    owns_directory = False
    resume_hint = "yolo train resume model={checkpoint}"

    def find(self, listing: Listing) -> tuple[Candidate, ...]:
        """Files whose dictionary begins as ultralytics' does."""
        found = []
        for entry in _newest(listing, ".pt"):
            head = read_head(os.path.join(listing.path, entry.name))
            if head is not None and _is_of_ultralytics(head):
                epoch = head.number_after("epoch") or 0
                found.append(_candidate(listing.path, entry, ULTRALYTICS, epoch))
        return tuple(found)

    def newest_first(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """By epoch; of two with the same one the newer file, which is best.pt beside last.pt."""
        return tuple(
            sorted(
                candidates,
                key=lambda item: (item.order or 0, _is_last(item), item.mtime_ns),
                reverse=True,
            )
        )

    def check(self, candidate: Candidate, limits: Limits) -> Verdict:
        """That a training can go on from it, then as any file of torch.save."""
        head = read_head(candidate.path)
        if head is not None and (head.number_after("epoch") or 0) < 0:
            why = "its training has ended and its optimizer is stripped: nothing goes on from it"
            return Verdict(whole=False, why=why, how_checked="quick")
        return check_file(candidate.path, limits)


def _is_of_ultralytics(head: Head) -> bool:
    return head.has_in_turn("epoch", "best_fitness")


def _is_last(candidate: Candidate) -> bool:
    return os.path.basename(candidate.path).startswith("last")
