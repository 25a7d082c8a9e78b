"""Texts of the judged processes: settings, milestones, hooks. Untrusted, read sparingly.

A side file is read again only when the slot's milestone word has changed since it was written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from watchdog_train.core.actions import HookReport, SettingReport
from watchdog_train.core.fold.state import AttemptRecord
from watchdog_train.core.model import MemberSample, RankPlaces, Sample, TrainingReport
from watchdog_train.core.notices.notes import Note, TaskNote
from watchdog_train.store.slots import read_note

WHY_CAP = 500
NOT_RESUMED = "not resumed: "
"""Prefix of the client's notes about a checkpoint that was not resumed from."""
MOST_OPTIONS = 4
_OPTION = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_.-]{0,79}(=[a-z]{1,20}| \{checkpoint\})?")
"""What may be shown as a part of a command."""
MOST_HOOKS = 32
_STATUSES: tuple[Literal["skipped", "failed"], ...] = ("skipped", "failed")


class SideFiles:
    """Of one attempt at a time; forget() before the next."""

    def __init__(self, slot_dir: Path | None) -> None:
        self._slot_dir = slot_dir
        self._known: dict[int, tuple[MemberSample, Note]] = {}
        self._silent: dict[int, MemberSample] = {}
        """Judged, and without a side file so far."""

    def forget(self) -> None:
        self._known.clear()
        self._silent.clear()

    def look(self, sample: Sample) -> None:
        for member, slot in sample.judged:
            known = self._known.get(member.member.pid)
            if known is None or known[1].changes < slot.milestone:
                self._read(member)

    def look_once_more(self) -> None:
        """The training has exited: read what was written since the last sample."""
        # The first words of a training that ended within a second are written at its end.
        for member in [*self._silent.values(), *(member for member, _ in self._known.values())]:
            self._read(member)

    def _read(self, member: MemberSample) -> None:
        slot = member.slot
        if self._slot_dir is None or slot is None:
            return
        note = read_note(self._slot_dir, slot.pid)
        # An earlier process of the same number may have left one.
        if note is not None and note.attempt == slot.attempt and note.start == slot.start:
            self._known[slot.pid] = (member, note)
            self._silent.pop(slot.pid, None)
        elif slot.pid not in self._known:
            self._silent[slot.pid] = member

    def places(self) -> tuple[RankPlaces, ...]:
        """The milestones of every process that was judged in this attempt."""
        found = [
            RankPlaces(
                rank=member.member.rank or 0,
                local_rank=member.member.local_rank,
                pid=member.member.pid,
                milestones=note.milestones,
            )
            for member, note in self._known.values()
            if note.milestones
        ]
        return tuple(sorted(found, key=lambda each: (each.rank, each.pid)))

    def hooks(self) -> tuple[HookReport, ...]:
        """The hooks that a process could not arm; at most 32."""
        found: list[HookReport] = []
        for member, note in self._known.values():
            for hook, said in note.hooks.items():
                status = next((one for one in _STATUSES if said.startswith(one)), None)
                if status is not None and len(found) < MOST_HOOKS:
                    why = said.partition(": ")[2][:WHY_CAP] or said[:WHY_CAP]
                    found.append(
                        HookReport(hook=hook[:60], pid=member.member.pid, status=status, why=why)
                    )
        return tuple(found)

    def training(self) -> TrainingReport | None:
        """The present training, by the lowest rank that trains."""
        told = [
            (member.member.rank or 0, -note.changes, note.training)
            for member, note in self._known.values()
            if note.training is not None
        ]
        if not told:
            return None
        newest = min(told, key=lambda each: each[:2])[2]
        return TrainingReport(home=newest.home, nth=newest.nth)

    def tasks(self) -> tuple[tuple[int, TaskNote], ...]:
        """What each process that works off a queue ran last, with its pid."""
        known = self._known.items()
        return tuple((pid, note.task) for pid, (_, note) in known if note.task is not None)

    def resume_options(self) -> tuple[str, ...]:
        """Listed arguments by which the script may resume, {checkpoint} for a path."""
        found = [
            option
            for _, note in self._known.values()
            for option in note.options
            if _OPTION.fullmatch(option)
        ]
        return tuple(dict.fromkeys(found))[:MOST_OPTIONS]

    def not_resumed(self) -> str | None:
        """Why a hook has not handed over the checkpoint, the newest reason that was given."""
        found = [
            text.removeprefix(NOT_RESUMED)
            for _, note in self._known.values()
            for text in note.notes
            if text.startswith(NOT_RESUMED)
        ]
        return found[-1][:WHY_CAP] if found else None

    def settings(self, sample: Sample, attempt: AttemptRecord | None) -> tuple[SettingReport, ...]:
        """Reports of training processes on settings that are not recorded as in effect yet."""
        if attempt is None or self._slot_dir is None or not attempt.launched:
            return ()
        wanted = {str(setting.get("id")) for setting in attempt.plan.in_process}
        wanted -= set(attempt.taken)
        if not wanted:
            return ()
        # If a training exited soon after its last sample, only the notes read at its exit show it.
        notes = {pid: note for pid, (_, note) in self._known.items()}
        for member, slot in sample.judged:
            if slot.settings_taken or slot.progress:
                note = read_note(self._slot_dir, member.member.pid)
                if note is not None:
                    notes[member.member.pid] = note
        return tuple(
            SettingReport(remedy=remedy, pid=pid, took=said.took, why=said.why[:WHY_CAP])
            for pid, note in notes.items()
            for remedy, said in note.settings.items()
            if remedy in wanted
        )
