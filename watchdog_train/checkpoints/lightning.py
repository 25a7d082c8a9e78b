"""Checkpoints of a Lightning Trainer: one zip of torch.save each. Nothing in them is unpickled.

ModelCheckpoint names its files as the user likes, so contents identify a file: the first keys of
its dictionary are the epoch, the step and the version of Lightning.
"""

from contextlib import closing

from watchdog_train.checkpoints.disk import DamagedError, UnreadableError, open_regular
from watchdog_train.checkpoints.formats import Format
from watchdog_train.checkpoints.pickle_head import Head, known_by_head
from watchdog_train.checkpoints.torch_zip import OpenZip, check_file

NAME = "lightning"
_VERSION_KEY = "pytorch-lightning_version"
_OPTIMIZERS = (b"\x10\x00\x00\x00optimizer_states", b"\x8c\x10optimizer_states")
"""The key missing in a file of weights alone, as protocols 2 and 4 of pickle write it."""
_PICKLE_CAP_BYTES = 64 * 1024 * 1024


def _holds_only_weights(path: str, head: Head) -> bool:
    """No state of an optimizer is in it, which fit() needs; False if it is damaged."""
    try:
        with closing(OpenZip(path)) as archive:
            sizes = [m.file_size for m in archive.members if m.filename.endswith("/data.pkl")]
        # Not through zipfile, which refuses a file that was saved without checksums.
        with open_regular(path) as file:
            file.seek(head.offset)
            data = file.read(min(*sizes, _PICKLE_CAP_BYTES))
    except (DamagedError, UnreadableError, OSError):
        return False
    return len(data) == min(sizes) and not any(key in data for key in _OPTIMIZERS)


def _counters_of(path: str, head: Head) -> dict[str, int] | None:
    """Of full checkpoints; fit() cannot continue from weights alone (save_weights_only)."""
    if _VERSION_KEY not in head.words or _holds_only_weights(path, head):
        return None
    step = head.number_after("global_step")
    return {"global_step": step} if step is not None and step >= 0 else {}


FORMAT = Format(
    name=NAME,
    resume_hint="by itself (the hook in Trainer.fit), "
    "or trainer.fit(model, ckpt_path={checkpoint})",
    # Hidden files are the tuner's: .lr_find_*.ckpt and .scale_batch_size_*.ckpt.
    find=lambda listing: known_by_head(listing, NAME, (".ckpt", ".pt", ".pth"), _counters_of),
    check=lambda candidate, limits: check_file(candidate.path, limits),
    # As `ckpt_path="last"` does: a second fit into one directory counts from zero.
    key=lambda candidate: (candidate.mtime_ns, candidate.step or 0),
)
