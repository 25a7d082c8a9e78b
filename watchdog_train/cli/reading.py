"""What the reading commands share: the events of a run, and a measurement of its processes now.

Must not write, signal or wait: these commands work next to a supervisor, and without one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from watchdog_train.checkpoints.disk import Following
from watchdog_train.cli.log_files import last_lines, modified_at, streams_of
from watchdog_train.core.events import AnyEvent
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    Member,
    MemberSample,
    RankStatus,
    Sample,
    SaveRecord,
    SlotReading,
    workers_by_rank,
)
from watchdog_train.core.notices.vitals import blind_for_s
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.report.document import Document, Live
from watchdog_train.report.facts import without_secrets
from watchdog_train.store.control import vitals_in
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import RunDirectory, original_of
from watchdog_train.store.side_files import SideFiles
from watchdog_train.store.slots import SlotScan, newest_noted_save, read_slots
from watchdog_train.system import current
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import distrusted

PACE_S = 300.0
"""Longest age of a recorded pace that is still used; a supervisor records it much more often."""


class RunReading(NamedTuple):
    run: RunDirectory
    events: tuple[AnyEvent, ...]
    state: State
    problems: tuple[str, ...]
    """What is missing in the log, in words."""
    original: Path | None = None
    """The run directory that this one is a copy of."""


def read_run(run: RunDirectory) -> RunReading:
    """The log of a run, as much of it as is readable; secrets are taken out of command lines.

    WtrainError: there is no log, or nothing in it can be read.
    """
    found = read_events(run.events, strict=False, spill_dir=run.spill_dir)
    events = tuple(without_secrets(found.events, redact_argv))
    problems = []
    original = original_of(run.path)
    if original is not None:
        problems.append(
            f"this directory is a copy, and shows what was recorded until it was made; "
            f"the run itself: wtrain status {original}"
        )
    if (foreign := distrusted(os.stat(run.path))) is not None:
        problems.append(f"{foreign}: wtrain shows this run and does nothing that its files say")
    if found.problem is not None:
        problems.append(
            f"the event log is damaged, what follows may be incomplete: {found.problem}"
        )
    if found.torn_tail is not None and original is None and is_held(run.lock) is False:
        problems.append("the last event was cut off when the supervisor ended; it is left out")
    if found.spilled:
        problems.append(f"{found.spilled} events wait in memory for a disk that takes them")
    state = replay(events)
    if not state.run_id:
        # Killed before its first event: the directory has the name of the run.
        state = msgspec.structs.replace(
            state, run_id=run.run_id, name=run.name, run_dir=str(run.path)
        )
        problems.append("the log has no first event: the supervisor ended before it began")
    elif Path(state.run_dir) != run.path.absolute():
        state = msgspec.structs.replace(state, run_dir=str(run.path.absolute()))
    return RunReading(run, events, state, tuple(problems), original)


def look(reading: RunReading, *, log_lines: int = 0) -> Document:
    """The run with present measurements from outside."""
    run, state, system = reading.run, reading.state, current()
    here = state.host in ("", _host())
    is_copy = reading.original is not None
    # The processes of the original are its own, and may be of a later attempt.
    same_boot = here and not is_copy and state.boot_id == system.boot_id()
    live = Live(
        at=time.time(),
        mono=system.monotonic() if same_boot else None,
        supervisor_alive=None if is_copy else _is_alive(run, state, here=here, boot=same_boot),
        here=here,
        is_copy=is_copy,
        save=newest_save(run, state),
        log_tail=_log_tail(run, state, log_lines) if log_lines else (),
        problems=reading.problems,
    )
    if not state.finished and live.mono is not None:
        live = _measured(live, live.mono, state, system)
    return Document(state=state, live=live, events=reading.events)


def _host() -> str:
    """As socket.gethostname(), without the 5 ms that importing socket takes."""
    if sys.platform != "win32":
        return os.uname().nodename
    import socket

    return socket.gethostname()


def _is_alive(run: RunDirectory, state: State, *, here: bool, boot: bool) -> bool | None:
    """Of the supervisor; `boot`: the recorded pids are those of this machine since its boot."""
    held = is_held(run.lock)
    if held is not None and (held or here):
        return held
    if not here or state.supervisor is None:
        return None
    return current().is_alive(state.supervisor) if boot else False


def _measured(live: Live, now: float, state: State, system: ProcessSystem) -> Live:
    """Beats from the slots, and the states of recorded processes, each checked by its start."""
    from watchdog_train.core.notices.poll_events import run_progress  # 24 ms

    slot_dir = Path(state.slot_dir) if state.slot_dir is not None else None
    vitals = vitals_in(slot_dir) if live.supervisor_alive else None
    scan = read_slots(slot_dir) if slot_dir is not None else SlotScan(readings=(), problems=())
    slots = {slot.pid: slot for slot in scan.readings}
    members = _members(state, slots)
    rows = system.snapshot([member.identity for member in members])
    samples = []
    for member in members:
        row = rows.get(member.pid)
        if row is None or member.start not in (0, row.start):
            continue
        slot = slots.get(member.pid)
        if slot is not None and slot.start not in (0, row.start):
            slot = None
        samples.append(MemberSample(member=member, state=row.state, cpu_s=row.cpu_s, slot=slot))
    sample = Sample(at=now, members=tuple(samples))
    live = msgspec.structs.replace(
        live,
        blind_s=blind_for_s(vitals, now) if vitals is not None else None,
        states={one.member.pid: one.state for one in samples},
        problems=(*live.problems, *scan.problems[:3]),
    )
    measured = sample.judged
    if not measured:
        return live
    files = SideFiles(slot_dir)
    files.look(sample)
    # One sample measures no pace: the recorded pace is used while it is recent.
    recent = now - state.progress_mono <= PACE_S
    return msgspec.structs.replace(
        live,
        ranks=_ranks(sample),
        progress=run_progress(sample, state, state.progress.steps_s if recent else None),
        places=files.places() or None,
        can_save=any(slot.can_save for _, slot in measured),
        can_stop=any(slot.can_stop for _, slot in measured),
    )


def _ranks(sample: Sample) -> tuple[RankStatus, ...]:
    workers = workers_by_rank(one.member for one in sample.members)
    return tuple(
        RankStatus(
            rank=one.member.rank or 0,
            local_rank=one.member.local_rank,
            pid=one.member.pid,
            host=one.member.host or None,
            step=slot.step,
            phase=slot.phase,
            beat_age_s=round(max(0.0, sample.at - slot.last_beat_ns / 1e9), 1)
            if slot.last_beat_ns
            else None,
            state=one.state,
            workers=tuple(workers.get(one.member.rank, ())),
        )
        for one, slot in sample.judged
    )


def _members(state: State, slots: Mapping[int, SlotReading]) -> tuple[Member, ...]:
    """Recorded members, and processes with a slot that started after the last census."""
    here = tuple(member for member in state.members if member.host in state.hosts_here)
    known = {member.pid for member in here}
    attempt = state.attempt.attempt if state.attempt is not None else 0
    young = tuple(
        Member(
            pid=slot.pid,
            start=slot.start,
            role="other" if slot.role == "unknown" else slot.role,
            rank=slot.rank,
            local_rank=slot.local_rank,
            worker=slot.worker,
        )
        for slot in slots.values()
        if slot.pid not in known and slot.attempt == attempt
    )
    return (*here, *young)


def newest_save(run: RunDirectory, state: State) -> SaveRecord | None:
    return newest_noted_save(run, state, lambda save: Following().now(save))


def _log_tail(run: RunDirectory, state: State, lines: int) -> tuple[str, ...]:
    from watchdog_train.evidence.logs import clean_lines  # 14 ms

    for attempt in reversed(state.attempts):
        streams = streams_of(run.attempt(attempt.attempt))
        for path in sorted((stream.path for stream in streams), key=modified_at, reverse=True):
            found = last_lines(path, lines)
            if found:
                return tuple(line[:400] for line in clean_lines(found))
    return ()


def refuse_unreadable(reading: RunReading) -> None:
    """For commands that act: raise WtrainError for a log that does not name its run."""
    if reading.state.started_at is None:
        raise WtrainError(
            "the log of this run has no first event",
            context=str(reading.run.events),
            hint="start it again with: wtrain run -- COMMAND",
            reference="run-empty",
        )
