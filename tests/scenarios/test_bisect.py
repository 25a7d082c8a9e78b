"""`wtrain bisect`: which change makes a real hang go away, told by trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import (
    is_alive,
    of_type,
    program_command,
    read_log,
    run_wtrain,
    write_fast_config,
)

pytestmark = [pytest.mark.processes, pytest.mark.scenario]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_lock_held_while_workers_are_forked(tmp_path: Path) -> None:
    """Gone without workers and with spawned ones; the training's own folder is as it was."""
    config = write_fast_config(tmp_path)
    kept = tmp_path / "out" / "step-000005.pt"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    command = program_command("loader_fork_lock.py", "--hang-at", "0", "--out", "out")
    tried = [word for name in ("workers-0", "spawn", "threads-1") for word in ("--try", name)]
    options = ("--config", str(config), "--output-option", "out", "--steps", "10", "--json", *tried)
    done = run_wtrain("bisect", *options, "--", *command, cwd=tmp_path, timeout_s=280).check(0)
    answer = done.json()
    outcomes = {each["change"]: each["outcome"] for each in answer["trials"]}
    assert outcomes == {
        "as-it-is": "hung",
        "workers-0": "ran",
        "spawn": "ran",
        "threads-1": "hung",
    }, done.describe()
    assert answer["helps"] == ["workers-0", "spawn"]
    assert kept.read_bytes() == b"mine"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    for each in answer["trials"]:
        events = read_log(Path(each["run_dir"]))
        assert of_type(events, "run_finished"), each
        assert not [one for one in of_type(events, "attempt_launched") if is_alive(one["pid"])]
        assert (each["evidence"] is not None) == (each["outcome"] == "hung")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--in-place"),
        (("--in-place", "--try", "wrokers-0"), "there are: workers-0"),
        (("--in-place", "--minutes", "0"), "--minutes"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    """Before anything is made; results are not written over unasked."""
    done = run_wtrain("bisect", *options, "--", "sleep", "1", cwd=tmp_path).check(78)
    assert words in done.stderr, done.describe()
    assert not (tmp_path / "wtrain-runs").exists()


def test_a_command_that_ends_well_has_nothing_to_search(tmp_path: Path) -> None:
    """One trial, exit code 0, and the words say so."""
    done = run_wtrain("bisect", "--in-place", "--", "true", cwd=tmp_path).check(0)
    assert "ran to its end: there is nothing to search for" in done.stdout, done.describe()
