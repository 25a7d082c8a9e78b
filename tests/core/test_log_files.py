"""Captured output from a moment on, by what the keeper noted beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import pytest

from watchdog_train.cli.log_files import since_moment
from watchdog_train.cli.logs import moment_of
from watchdog_train.store.run_paths import TIMES_SUFFIX


def write(path: Path, text: str, times: str | None, modified: float) -> None:
    path.write_text(text)
    os.utime(path, (modified, modified))
    if times is not None:
        path.with_name(path.name + TIMES_SUFFIX).write_text(times)


def shown(path: Path, at: float) -> str:
    return b"".join(since_moment(path, at)).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An older half that ends at 140, and a newest one with a line each ten seconds."""
    log = tmp_path / "output.log"
    write(tmp_path / "output.log.1", "a\nb\n", "100 0\n130 2\n", 140)
    write(log, "c\nd\ne\n", "150 0\n160 2\n170 4\n", 175)
    return log


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "a\nb\nc\nd\ne\n"),
        (100, "a\nb\nc\nd\ne\n"),
        (135, "b\nc\nd\ne\n"),
        (141, "c\nd\ne\n"),
        (160, "d\ne\n"),
        (169, "d\ne\n"),
        (174, "e\n"),
        (176, ""),
    ],
)
def test_from_a_moment_on(log: Path, at: float, text: str) -> None:
    assert shown(log, at) == text


@pytest.mark.parametrize("times", [None, "", "x y\n", "150 2", "999999999999999999999999 5\n"])
def test_without_notes_all_is_shown(tmp_path: Path, times: str | None) -> None:
    """A run of another version has none, and a torn or damaged one is not trusted."""
    log = tmp_path / "output.log"
    write(log, "c\nd\n", times, 175)
    assert shown(log, 149) == "c\nd\n"


def test_moments_that_people_type() -> None:
    now = time.time()
    assert moment_of("10m") == pytest.approx(now - 600, abs=5)
    later = time.strftime("%H:%M", time.localtime(now + 3600))
    assert moment_of(later) == pytest.approx(now - 23 * 3600, abs=3700)
    assert moment_of(later) < now
    assert time.localtime(moment_of("2026-11-21T23:10"))[:5] == (2026, 11, 21, 23, 10)
    with pytest.raises(click.BadParameter, match="is no time"):
        moment_of("yesterday")
