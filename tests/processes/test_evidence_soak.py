"""Whatever evidence is asked for, and however often, a busy process lives."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training
from tests.processes.collecting import collect_tree, fake_pyspy
from tests.support import PROGRAMS, wait_until
from watchdog_train.client import layout
from watchdog_train.core.model import BundleWhy
from watchdog_train.core.policy import Recovery
from watchdog_train.evidence import pyspy
from watchdog_train.supervisor.evidence_requests import kills

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks for py-spy's stacks"
)
AT_ONCE = 6
WITHOUT_PTRACE = "exec setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace"


@pytest.mark.parametrize(
    "requests", [60, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.takes_minutes])]
)
def test_a_busy_process_survives_every_request_for_evidence(tmp_path: Path, requests: int) -> None:
    """Stack samples and bundles, with py-spy, with ptrace refused and without any tool."""
    training = Training(tmp_path)
    training.control().close()
    process = training.start((PROGRAMS / "busy_threads.py").read_text())
    refused = "echo 'Permission denied' >&2; exit 1"
    if os.geteuid() == 0 and shutil.which("setpriv") is not None:
        refused = f'{WITHOUT_PTRACE} {pyspy.find()} "$@"'
    tools = {
        "py-spy": pyspy.find,
        "refused": fake_pyspy(tmp_path, refused),
        "missing": lambda: None,
    }

    def ask(number: int, mode: str, tool: str) -> int:
        folder = tmp_path / str(number)
        folder.mkdir()
        found = collect_tree(
            folder,
            process.pid,
            mode,
            find_pyspy=tools[tool],
            slot_dir=str(training.slot_dir),
            deadline_s=60.0,
        )
        assert process.poll() is None, f"killed by request {number}: {mode}, {tool}"
        return found.captured

    try:
        assert process.stdout.readline() == "ready\n"
        slot = training.slot_dir / f"{process.pid}{layout.SLOT_SUFFIX}"
        wait_until(slot.exists, 10, "its slot")
        kinds = itertools.cycle(itertools.product(("look", "full"), tools))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [
                pool.submit(ask, number, mode, tool)
                for number, (mode, tool) in enumerate(itertools.islice(kinds, requests))
            ]
            captured = [job.result() for job in jobs]
        assert process.poll() is None
        assert sum(captured) >= 0.95 * requests
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("why", "changes", "killed"),
    [
        ("stall", {}, True),
        ("stall", {"on_stall": "report"}, False),
        ("stall", {"observe": True}, False),
        ("crash", {}, True),
        ("crash", {"observe": True}, False),
        ("manual", {}, False),
    ],
)
def test_a_way_that_may_crash_the_process_needs_a_kill_that_follows(
    why: BundleWhy, changes: dict[str, Any], killed: bool
) -> None:
    """A dump on request, that of a busy job included, and a report kill nobody."""
    assert kills(why, Recovery(**changes)) is killed
