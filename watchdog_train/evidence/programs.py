"""Finds the tools that read other processes: beside our interpreter, in its scripts, on PATH."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def find_program(name: str, distribution: str | None = None) -> str | None:
    """The path of a program; `distribution` is the package that may have put it elsewhere."""
    file_name = f"{name}.exe" if os.name == "nt" else name
    for folder in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        path = os.path.join(folder or "", file_name)
        if folder and os.access(path, os.X_OK):
            return path
    found = shutil.which(file_name)
    if found is None and distribution is not None:
        return _from_distribution(file_name, distribution)
    return found


def _from_distribution(name: str, distribution: str) -> str | None:
    """Where `pip install --user` or `--target` put it."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        for file in files(distribution) or ():
            path = str(file.locate())
            if file.name == name and os.access(path, os.X_OK):
                return path
    except PackageNotFoundError:
        return None
    return None
