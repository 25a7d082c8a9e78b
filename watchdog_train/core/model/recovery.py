"""What a restart is made of: saves, checkpoints, remedies, the plan of an attempt."""

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from watchdog_train.core.model.reasons import Why
from watchdog_train.core.model.words import RemedyKind, ResumeVia, Value

ScanLevel = Literal["quick", "full", "noted"]
"""How much a scan of checkpoints reads. noted: only what the hooks noted, and whether its files
are unchanged since by size and time."""
PARTS = (
    "optimizer",
    "optim",
    "scheduler",
    "scaler",
    "rng_state",
    "random_states",
    "training_args",
)
"""Beginnings of names of files that are a part of a checkpoint, not one."""
_SINGLE_FILES = ("torch", "safetensors")
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pth.tar")
"""Of a file of torch.save. Other names count if a hook noted them, or by their first bytes."""
UNFINISHED = re.compile(r"(?i)[._-](tmp|temp|part|partial|incomplete|saving|writing)$")
"""Suffix of a file that is renamed once it is complete."""


class RemedyUse(Value, omit_defaults=True):
    id: str
    kind: RemedyKind
    why: Why
    in_part: bool = False
    """Only as far as it needs no permission."""
    experiment: bool = False
    """A fallback setting: nothing that was seen calls for it."""
    n: int | None = None
    """The number of `--with ID=N`."""

    @property
    def word(self) -> str:
        """As --with takes it."""
        return self.id if self.n is None else f"{self.id}={self.n}"


class GuiltyNode(Value):
    host: str
    why: Why


class Whose(Value):
    """The training that wrote a checkpoint; fields are None if unknown."""

    ordinal: int | None = None
    """The number of the call of train() or fit() that wrote it, if the save hook recorded that."""
    home: str | None = None
    """The directory that identifies the training, if it is not output_dir: Lightning writes into a
    new version_N at every start."""
    nth: int | None = None
    """Which training into this home it was in its process: a second stage may share a directory,
    and a script that skips finished folds counts its calls from the start."""
    signature: str | None = None
    """What was trained; two that differ are two trainings."""


class TrainingReport(Value):
    """The newest training of the first rank, as its process reported it, by its output path."""

    home: str
    nth: int | None = None


class CheckpointRef(Whose):
    """The checkpoint a plan resumes from."""

    path: str
    format: str
    step: int | None
    how_checked: str
    saved_at: float | None = None
    """Unix seconds, by the newest of its files; identifies leftovers of an earlier run."""
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    """Step and epoch from the file itself, by their names in it; of a single file only."""
    copy_of: str | None = None
    """Of a kept copy: the original file."""


class SaveRecord(Whose):
    """A finished save as noted by the hook inside the training: a line of saves.<pid>.jsonl."""

    path: str
    """Absolute: the directory of a checkpoint, or its single file."""
    format: str
    """"hf", "lightning", "accelerate", "torch" or "safetensors"."""
    step: int | None = None
    output_dir: str | None = None
    t: float = 0.0
    """Unix seconds, when the save had ended."""
    files: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Name (relative to the directory) to size in bytes and mtime in nanoseconds; empty while the
    file being written is open."""
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    """Step and epoch in the dictionary that was saved, by their names in it."""
    inodes: tuple[int, ...] = ()
    """Of the path and of the folders above it, upward."""
    attempt: int = 0

    @property
    def saved_at(self) -> float:
        """Unix seconds of its newest file, as the hook noted them."""
        return max((mtime_ns for _, mtime_ns in self.files.values()), default=0) / 1e9 or self.t

    @property
    def is_part(self) -> bool:
        """A single file from which nothing resumes."""
        is_file = self.format in _SINGLE_FILES
        names = self.files or re.split(r"[/\\]", self.path)[-1:]
        return is_file and any(name.startswith(PARTS) for name in names)


def newest_checkpoint(saves: Iterable[SaveRecord]) -> SaveRecord | None:
    """The newest save that a training resumes from, in the order of a scan of checkpoints.

    A framework's full state comes before single files: `save_model()` at the end of a script writes
    a model, which is newer and no checkpoint.
    """
    return max(
        (save for save in saves if not save.is_part),
        key=lambda save: (save.format not in _SINGLE_FILES, save.t),
        default=None,
    )


class KeptCopy(Value):
    """A copy, in the run directory, of a checkpoint that is overwritten in place."""

    path: str
    copy: str
    format: str
    step: int | None
    saved_at: float
    """Unix seconds of the file that was copied."""
    seconds: float = 0.0
    attempt: int = 0
    """The attempt that wrote the checkpoint."""


class KeepAnswer(KeptCopy):
    """The result of the child that was to keep a copy."""

    how: Literal["reflink", "copy"] = "copy"
    problem: str | None = None


class RestoreAnswer(Value):
    """The result of the child that was to put a kept copy back."""

    path: str
    copy: str
    aside: str | None = None
    """The present path of the torn file."""
    problem: str | None = None
    """Why nothing was changed."""


class CheckpointFinding(CheckpointRef):
    whole: bool | None
    """None: unknown (a legacy pickle, a foreign format)."""
    said: str
    """By the check of its files."""
    before_run: bool = False
    """It was there when the run began, and is unchanged since."""


class Survey(Value):
    """The checkpoints of a run, newest first."""

    findings: tuple[CheckpointFinding, ...]
    directories: tuple[str, ...]
    """The directories that were scanned."""
    problem: str | None = None
    """Why the scan is incomplete; None: it is complete."""
    warnings: tuple[str, ...] = ()
    """About packages that add formats, if one has failed."""
    gone: str | None = None
    """Which noted saves are gone, as text, if they are newer than every usable one."""
    cut: bool = False
    """There were more files than were examined."""
    failed: bool = False
    """There was no answer, or a place was unreadable and nothing valid elsewhere: the scan proves
    nothing about missing checkpoints."""
    beside_writers: bool = False
    """The training may have written meanwhile: what was torn then may be valid by now."""

    @property
    def newest_whole(self) -> CheckpointFinding | None:
        return next((finding for finding in self.findings if finding.whole), None)


class Plan(Value):
    attempt: int
    why: Why
    argv: tuple[str, ...]
    env: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    """Only what is added to or changed in the user's environment."""
    in_process: tuple[dict[str, Any], ...] = ()
    """Settings for the client, each {"id": ..., parameters}."""
    checkpoint: CheckpointRef | None = None
    resume_via: ResumeVia = "none"
    remedies: tuple[RemedyUse, ...] = ()
    sole: bool = False
    """Each attempt so far began one training, and the checkpoint is from it."""
    resume_arg: str | None = None
    """The arguments in argv that resume, {checkpoint} for the given path."""

    @property
    def settings(self) -> frozenset[str]:
        """Ids of its remedies: two plans with equal ids are the same plan."""
        return frozenset(use.id for use in self.remedies)
