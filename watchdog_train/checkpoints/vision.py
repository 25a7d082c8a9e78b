"""Checkpoints of timm and of ultralytics: files of torch.save that are counted by epochs.

From the sources of timm 1.0.31 (CheckpointSaver) and ultralytics 8.4.190 (BaseTrainer.save_model,
strip_optimizer). Both are known by the first keys of their dictionary, whatever the file is called.
"""

import os

from watchdog_train.checkpoints.disk import DamagedError
from watchdog_train.checkpoints.formats import Candidate, Format, Limits, Verdict
from watchdog_train.checkpoints.pickle_head import Head, known_by_head, read_head
from watchdog_train.checkpoints.torch_zip import check_file

_TIMM_UNFINISHED = ("tmp.pth.tar", "recovery_tmp.pth.tar")


def _epoch(head: Head, second: str) -> dict[str, int] | None:
    triples = zip(head.words, head.words[1:], head.words[2:], strict=False)
    numbers = (number for word, number, after in triples if (word, after) == ("epoch", second))
    # Neither format records steps.
    return next(({"epoch": number} for number in numbers if type(number) is int), None)


def _check_timm(candidate: Candidate, limits: Limits) -> Verdict:
    if os.path.basename(candidate.path) in _TIMM_UNFINISHED:
        raise DamagedError("by its name a save that has not finished")
    return check_file(candidate.path, limits)


def _check_ultralytics(candidate: Candidate, limits: Limits) -> Verdict:
    """Refuse a stripped file, then check it as any file of torch.save."""
    head = read_head(candidate.path)
    if head is not None and (head.number_after("epoch") or 0) < 0:
        stripped = "its training has ended and its optimizer is stripped"
        raise DamagedError(f"{stripped}: nothing goes on from it")
    return check_file(candidate.path, limits)


def _is_last(candidate: Candidate) -> bool:
    return os.path.basename(candidate.path).startswith("last")


TIMM = Format(
    name="timm",
    resume_hint='--resume-arg "--resume {checkpoint}"',
    find=lambda listing: known_by_head(
        listing, "timm", (".pth.tar",), lambda _, head: _epoch(head, "arch")
    ),
    check=_check_timm,
    # By time: a recovery file lies between two epochs and records the one that it began in.
    # checkpoint-E and model_best are hard links to what `last` was when they were made.
    key=lambda candidate: (candidate.mtime_ns, _is_last(candidate)),
)
ULTRALYTICS = Format(
    name="ultralytics",
    resume_hint="yolo train resume model={checkpoint}",
    find=lambda listing: known_by_head(
        listing, "ultralytics", (".pt",), lambda _, head: _epoch(head, "best_fitness")
    ),
    check=_check_ultralytics,
    # last, best and epochE are overwritten in place: of two with one epoch the newer file.
    key=lambda one: ((one.counters or {}).get("epoch", 0), _is_last(one), one.mtime_ns),
)
