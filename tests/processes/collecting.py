"""Collections of real processes for tests, with the tools that they name."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.discover import tree_of
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.system import current


def state_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


def request_for(tmp_path, members, mode="full", told=None, **changes):
    """`told`: what its verdict says."""
    values = {
        "mode": mode,
        "verdict": BundleVerdict(**{"id": "0001", "why": "stall", "at": 0.0, **(told or {})}),
        "out_dir": str(tmp_path / "out"),
        "staging_dir": str(tmp_path / "staging"),
        "members": tuple(members),
        **changes,
    }
    return EvidenceRequest(**values)


def collect_tree(tmp_path, pid, mode="full", find_pyspy=pyspy.find, **changes):
    members = tree_of(current(), pid)
    request = request_for(tmp_path, members, mode, **changes)
    return collect(request, find_pyspy=find_pyspy)


def fake_pyspy(tmp_path, body):
    path = tmp_path / "fake-py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return lambda: str(path)


ROOTS = {1: ("/sys/fs/cgroup/freezer",), 2: ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")}


class Freezer:
    """A cgroup of this machine that a test may freeze."""

    def __init__(self, folder, version):
        self.folder = folder
        self.file = folder / ("freezer.state" if version == 1 else "cgroup.freeze")
        self._values = ("THAWED", "FROZEN") if version == 1 else ("0", "1")

    def freeze(self, pid):
        (self.folder / "cgroup.procs").write_text(str(pid))
        self.file.write_text(self._values[1])

    def thaw(self):
        self.file.write_text(self._values[0])


@contextmanager
def freezer(version):
    """Removed at the end; skips where none can be made."""
    roots = [Path(root) for root in ROOTS[version] if os.path.exists(f"{root}/cgroup.procs")]
    if not roots or not os.access(roots[0] / "cgroup.procs", os.W_OK):
        pytest.skip(f"no cgroup of version {version} that this user may freeze here")
    group = Freezer(roots[0] / f"wtrain-test-{uuid.uuid4().hex[:12]}", version)
    group.folder.mkdir()
    members = group.folder / "cgroup.procs"
    try:
        yield group
    finally:
        group.thaw()
        for pid in members.read_text().split():
            (roots[0] / "cgroup.procs").write_text(pid)
        wait_until(lambda: not members.read_text(), 10, "the cgroup is empty")
        group.folder.rmdir()
