"""Fixtures and options of all tests: nothing that a test has started outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import MARKER, marked_processes, reap_started, wait_until

NEEDS = {
    "needs_subreaper",
    "needs_tcp_bytes",
    "needs_signal_masks",
    "needs_exit_status_of_others",
    "needs_open_files",
    "needs_cpu_wait",
}
"""Marks of tests that cannot hold with --portable; docs/platforms.md has a row for each test."""

hypothesis.settings.register_profile("wtrain", deadline=None)
hypothesis.settings.load_profile("wtrain")

os.environ["TZ"] = "UTC"  # screens show local times
time.tzset()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests, too")
    parser.addoption(
        "--portable",
        action="store_true",
        help="run with what psutil can do, as on macOS; without tests marked needs_...",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in its background so, and every command of a test inherits it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--portable"):
        os.environ["WTRAIN_SYSTEM"] = "portable"
    else:
        os.environ.pop("WTRAIN_SYSTEM", None)


@pytest.hookimpl(trylast=True)  # after the shuffle
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Begun at the end it would go on alone, with the other workers idle.
    items.sort(key=lambda item: "takes_minutes" not in item.keywords)
    if config.getoption("--portable"):
        for item in items:
            for name in NEEDS & set(item.keywords):
                item.add_marker(pytest.mark.skip(reason=f"{name}: not with --portable"))
    if config.getoption("--all"):
        return
    skip = pytest.mark.skip(reason="slow: only with --all")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _state_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's own registry of runs is never read or written by a test."""
    home: Path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        for name in [name for name in os.environ if name.startswith("WTRAIN_")]:
            if name != "WTRAIN_SYSTEM":
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def _nothing_outlives_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process carries this test's marker; one that is left fails the test and is killed."""
    marker = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, marker)
    yield
    try:
        _fail_when_something_is_left(marker)
    finally:
        reap_started()


def _fail_when_something_is_left(marker: str) -> None:
    if not marked_processes(marker):
        return
    try:
        wait_until(lambda: not marked_processes(marker), 5.0, "the test's processes have ended")
    except AssertionError:
        left = marked_processes(marker)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        names = "\n".join(f"  {pid}: {command}" for pid, command in sorted(left.items()))
        pytest.fail(f"{len(left)} processes outlived the test (killed now):\n{names}")
