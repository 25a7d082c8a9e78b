"""Collections of real processes for tests, with the tools that they name."""

from __future__ import annotations

from watchdog_train.evidence import pyspy
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.discover import tree_of
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.system import current


def state_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


def request_for(tmp_path, members, mode="full", **changes):
    values = {
        "mode": mode,
        "stall_id": "0001",
        "why": "stall",
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
