"""What a search for leftovers takes for over: by the whole log, not by one event in it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import said
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.leftovers import look_around
from watchdog_train.system import current

RUN_ID = "train-20261121-231005-a3f9"
FINISHED = e.RunFinished(outcome="failed", exit_code=1, warning=None, why=said("exit code 1"))
BOOT_ID = current().boot_id()
REOPENED = e.Reopened(
    pid=2, start=2, boot_id=BOOT_ID, slot_dir=None, with_remedies=(), allow=(), why=said("restart")
)
ADOPTED = e.Adopted(pid=2, start=2, boot_id=BOOT_ID, previous_pid=1, why=said("gone"))


@pytest.mark.parametrize(
    ("boot_id", "history", "over"),
    [
        (BOOT_ID, (), False),
        (BOOT_ID, (FINISHED,), True),
        (BOOT_ID, (FINISHED, REOPENED), False),
        (BOOT_ID, (FINISHED, REOPENED, FINISHED), True),
        ("an earlier boot", (), True),
        ("an earlier boot", (ADOPTED,), False),
    ],
    ids=["running", "ended", "reopened", "ended again", "before a reboot", "adopted after it"],
)
def test_which_runs_are_over(
    tmp_path: Path, boot_id: str | None, history: tuple[e.AnyEvent, ...], over: bool
) -> None:
    """Processes of a run that was reopened, or adopted after a reboot, are no leftovers."""
    directory = RunDirectory(tmp_path / RUN_ID)
    directory.path.mkdir()
    log = EventLog.open(directory.events, spill_dir=directory.spill_dir)
    for event in (msgspec.structs.replace(b.RUN_STARTED, boot_id=boot_id), *history):
        log.append(event, 1)
    log.close(5.0)
    assert (RUN_ID in look_around(current(), tmp_path).finished) is over
