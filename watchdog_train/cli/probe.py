"""`wtrain probe`: whether a supervisor is there and awake, for kubelets, monitors and people.

Must stay quick and touch little: a run directory may lie on a file server that hangs, and then the
probe would fail. Its data is on local memory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from watchdog_train.cli.options import Time, json_option, run_argument, runs_dir_option
from watchdog_train.cli.screen import echo
from watchdog_train.core.notices.vitals import BLIND_S, Answer, Probe, Vitals, answer
from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import open_read

if TYPE_CHECKING:
    from watchdog_train.store.registry import LiveRun
    from watchdog_train.store.run_paths import RunDirectory
    from watchdog_train.system.protocol import ProcessSystem

ANSWER_S = 5.0
"""A longer read waits for a file system, which proves nothing about the supervisor."""
TAIL_BYTES = 65_536


@click.command()
@run_argument
@click.option(
    "--liveness", "probe", flag_value="liveness", default=True, help="It lives, and its loop turns."
)
@click.option("--startup", "probe", flag_value="startup", help="It has begun: the same so far.")
@click.option("--readiness", "probe", flag_value="readiness", help="Its training makes steps, too.")
@click.option(
    "--max-age",
    type=Time(),
    metavar="TIME",
    help="How long its loop may stand; 15 minutes while it handles a stall.  [default: 2m]",
)
@json_option
@runs_dir_option
def probe(
    run_ref: str | None, probe: str, max_age: float | None, as_json: bool, runs_dir: Path | None
) -> None:
    """Print one line about the supervisor of RUN: alive or not. Nothing is started or asked for.

    Without RUN it checks all live runs of this machine, or the newest run. Exit code 0: alive,
    handling a stall, or ended; 1: the supervisor is dead or its loop stands, or there is no run.
    It does not judge the training: the supervisor does.
    """
    wanted = cast("Probe", probe)
    said = _within(ANSWER_S, wanted, run_ref, runs_dir, max_age)
    if as_json:
        from watchdog_train.cli.screen import print_json

        print_json(probe=wanted, ok=said.ok, why=said.words)
    else:
        echo(said.words)
    sys.exit(0 if said.ok else 1)


def _within(
    limit_s: float, probe: Probe, run_ref: str | None, runs_dir: Path | None, max_age: float | None
) -> Answer:
    """The answer of a thread, or a default when the thread does not return in time."""
    import threading

    blind_s = BLIND_S if max_age is None else max_age
    found: list[Answer | Exception] = []

    def look() -> None:
        try:
            found.append(_look(probe, run_ref, runs_dir, blind_s))
        except Exception as error:  # noqa: BLE001 - raised again below
            found.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(limit_s)
    if not found:
        words = f"its files do not answer within {limit_s:g} s"
        if probe == "readiness":
            return Answer(False, f"not ready: {words}")
        return Answer(True, f"probably alive: {words}")
    if isinstance(found[0], WtrainError) and found[0].reference != "run-copy":
        return Answer(False, f"no run: {found[0].message}")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _look(probe: Probe, run_ref: str | None, runs_dir: Path | None, blind_s: float) -> Answer:
    from watchdog_train.store.lock import is_held
    from watchdog_train.store.registry import entries_here, entry_of
    from watchdog_train.system import current

    system = current()
    listed = () if run_ref else entries_here(runs_dir)
    alive = [entry for entry in listed if _lives(entry, system)]
    chosen: list[tuple[LiveRun | None, RunDirectory]]
    if listed:
        chosen = [(entry, entry.directory) for entry in alive or listed[-1:]]
    else:
        from watchdog_train.store.run_directory import resolve

        run = resolve(run_ref, runs_dir)
        run.refuse_copy()
        chosen = [(entry_of(run.run_id), run)]
    answers = []
    for entry, run in chosen:
        lives = _lives(entry, system) if entry is not None else None
        vitals = _vitals(entry, run)
        if not lives:
            lives = is_held(run.lock)  # by who has adopted it
        if vitals is None and lives is False and _has_ended(run):
            said = Answer(probe != "readiness", "ended: the run is finished")
        else:
            said = answer(probe, vitals, system.monotonic(), alive=lives, blind_s=blind_s)
        answers.append((run, said))
    run, worst = min(answers, key=lambda pair: pair[1].ok)
    return worst._replace(words=f"{worst.words} ({run.run_id})")


def _lives(entry: LiveRun, system: ProcessSystem) -> bool:
    """Whether the process that was listed as the supervisor is alive and the same."""
    if entry.boot_id is not None and entry.boot_id != system.boot_id():
        return False
    found = system.identity(entry.pid)
    return found is not None and entry.start in (0, found.start)


def _vitals(entry: LiveRun | None, run: RunDirectory) -> Vitals | None:
    from watchdog_train.store.control import vitals_in

    place = entry.slot_dir if entry is not None else None
    return vitals_in(Path(place) if place is not None else run.slot_dir())


def _has_ended(run: RunDirectory) -> bool:
    """By the end of the log; few lines follow the event of the end."""
    try:
        with open_read(run.events) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return b'"type":"run_finished"' in file.read(TAIL_BYTES)
    except OSError:
        return False
