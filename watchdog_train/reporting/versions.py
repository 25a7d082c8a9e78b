"""Versions of the libraries that a training runs with, read off the names of their folders.

Nothing of the training's environment is imported or run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from watchdog_train.core.fold.state import State

LIBRARIES = (
    "torch", "transformers", "accelerate", "datasets", "lightning", "pytorch_lightning", "trl",
    "peft", "deepspeed", "sentence_transformers", "wandb", "numpy", "tokenizers", "torchdata",
    "nvidia_nccl_cu12", "nvidia_nccl_cu13", "torchvision", "webdataset", "huggingface_hub",
)  # fmt: skip
_DIST = re.compile(r"(?P<name>[A-Za-z0-9_.]{1,60})-(?P<version>[A-Za-z0-9_.+!]{1,60})\.dist-info")
MOST_ENTRIES = 20_000


def versions(state: State, wtrain_version: str) -> tuple[tuple[str, str], ...]:
    """What is known; a library that is not found in the interpreter's folder is left out."""
    found = [("wtrain", wtrain_version), ("system", f"{platform.system()} {platform.release()}")]
    interpreter = _interpreter(state.attempt.plan.argv if state.attempt else state.argv)
    packages = _site_packages(interpreter) if interpreter is not None else None
    if packages is None:
        return (*found, ("libraries", "not known: the command's interpreter was not found here"))
    found.append(("Python", packages.parent.name.removeprefix("python")))
    installed = {}
    try:
        with os.scandir(packages) as entries:
            for _, entry in zip(range(MOST_ENTRIES), entries, strict=False):
                match = _DIST.fullmatch(entry.name)
                if match:
                    installed[match["name"].lower()] = match["version"]
    except OSError:
        return tuple(found)
    found += [(name, installed[name]) for name in LIBRARIES if name in installed]
    return tuple(found)


def _interpreter(argv: Sequence[str]) -> Path | None:
    """The program of the command, as a path that is not followed: a venv's is a link."""
    if not argv:
        return None
    where = argv[0] if os.path.isabs(argv[0]) else shutil.which(argv[0])
    return Path(where) if where else None


def _site_packages(program: Path) -> Path | None:
    folders = sorted((program.parent.parent / "lib").glob("python3*/site-packages"))
    return folders[-1] if folders else None
