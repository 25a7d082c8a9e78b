"""`wtrain dump`: evidence now, of a run or of any process tree, without ending anything."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import msgspec

from watchdog_train.cli.event_watch import EventWatch
from watchdog_train.cli.options import json_option, of_run
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.cli.show import read_or_refuse
from watchdog_train.core import events as e
from watchdog_train.core.job.machines import JOINT
from watchdog_train.core.model import EvidenceResult
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.discover import living_members, slot_dir_of, tree_of
from watchdog_train.evidence.manual import claim_bundle, collect_now
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.evidence_text import summary
from watchdog_train.store import requests
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.run_directory import ignore_in_git, resolve
from watchdog_train.store.run_paths import RunDirectory, default_runs_dir
from watchdog_train.system import current
from watchdog_train.system.proc import refuse_foreign

ANSWER_S = 15.0
"""Time limit for the leader of a job to begin."""
EXPLAINED_S = 120.0
"""For the evidence of all machines and one explanation of it."""


@click.command()
@click.option("--pid", type=click.IntRange(min=1), help="Dump any process with its descendants.")
@of_run
@json_option
def dump(*, run_ref: str | None, pid: int | None, runs_dir: Path | None, as_json: bool) -> None:
    """Take stacks of every process and explain them. Nothing is killed."""
    if pid is not None and run_ref is not None:
        raise click.UsageError("RUN or --pid, not both")
    result = _of_pid(pid, runs_dir) if pid is not None else _of_run(resolve(run_ref, runs_dir))
    if as_json:
        fields = msgspec.structs.asdict(result)
        fields |= {"id": fields.pop("stall_id"), "dir": os.path.abspath(result.dir)}
        print_json(**fields, captured=result.captured, missing=result.missing)
        return
    echo(f"wtrain: evidence is in {result.dir}", err=True)
    bundle = read_or_refuse(Path(result.dir))
    told = (bundle.verdict, bundle.explanation, bundle.evidence)
    echo(summary(*told, remedy_words=remedy_words()))


def _of_pid(pid: int, runs_dir: Path | None) -> EvidenceResult:
    refuse_foreign()
    system = current()
    if pid == os.getpid():
        raise WtrainError(f"process {pid} is this very command", reference="pid-unknown")
    members = tree_of(system, pid, without=(os.getpid(),))
    if not members:
        raise WtrainError(f"there is no process {pid}", reference="pid-unknown")
    place = default_runs_dir(runs_dir)
    name = f"pid-{pid}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = claim_bundle(place / name / "stalls")
    ignore_in_git(place)
    return collect_now(members, folder, slot_dir=slot_dir_of(system, members))


def _of_run(run: RunDirectory) -> EvidenceResult:
    run.hold()
    state = read_state(run, strict=False)
    alive = living_members(state, current())
    if not alive:
        raise WtrainError(
            "no process of this run is alive",
            context=str(run.path),
            hint="wtrain show prints what was collected before",
            reference="run-not-alive",
        )
    number = state.attempt.attempt if state.attempt else 0
    if len(state.trees) > 1 and (found := _of_job(run)) is not None:
        return found
    return collect_now(
        alive,
        claim_bundle(run.stalls),
        slot_dir=run.slot_dir(),
        attempt_dir=run.attempt(number) if number else None,
        attempt=number,
        command=state.argv,
    )


def _of_job(run: RunDirectory) -> EvidenceResult | None:
    """Evidence of all machines, by their leader; None when the leader does not answer."""
    watch = EventWatch(run)
    requests.post(run, "dump", "wtrain dump")
    begun = watch.wait(
        lambda event: isinstance(event, e.EvidenceCollecting) and event.why == "manual", ANSWER_S
    )
    if not isinstance(begun, e.EvidenceCollecting):
        return None
    found: dict[str, e.EvidenceCollected] = {}

    def is_complete(event: e.AnyEvent) -> bool:
        if isinstance(event, e.EvidenceCollected) and event.stall_id == begun.stall_id:
            found[event.host] = event
        if isinstance(event, e.StallExplained) and event.stall_id == begun.stall_id:
            return True
        # A joint explanation that failed is not tried again.
        waited_for = {tree.host for tree in watch.state.trees if not tree.lost}
        return JOINT in watch.state.notices and waited_for <= found.keys()

    last = watch.wait(is_complete, EXPLAINED_S)
    ours = found.get("")
    if ours is None:
        return None
    return EvidenceResult(
        stall_id=ours.stall_id,
        dir=ours.dir,
        processes=tuple(one for each in found.values() for one in each.processes),
        explanation=last.explanation if isinstance(last, e.StallExplained) else None,
        fingerprint=ours.fingerprint,
        seconds=max(each.seconds for each in found.values()),
        problem=next((each.problem for each in found.values() if each.problem), None),
    )
