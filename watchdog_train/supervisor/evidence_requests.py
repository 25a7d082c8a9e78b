"""Requests to the processes that take and read evidence; supervisor.tasks starts these."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core.detection.rank_gone import missing_ranks
from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import BundleWhy, RankEnd, Sample
from watchdog_train.core.model.explanation import Silence
from watchdog_train.core.model.gpu import GpuSeen, GpuUse
from watchdog_train.core.policy import Recovery
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.report.why_text import why_text
from watchdog_train.store.slots import read_saves
from watchdog_train.supervisor.context import Context
from watchdog_train.trusted_files import names

MOST_ENDED = 64
"""Exited ranks listed in a bundle."""
VANISHED_S = 20.0
"""Before the last progress: batches that were ready are used up first."""
STREAM_FILES = ("output.log", "stdout.log", "stderr.log")


class EvidenceRequests(msgspec.Struct, frozen=True):
    context: Context
    state: State
    sight: a.TreeSight
    gpu_seen: GpuSeen

    def of(self, action: a.StartLook | a.StartEvidence) -> EvidenceRequest:
        """For a stack sample of a suspicion, or for a bundle."""
        context, sight, verdict = self.context, self.sight, action.verdict
        policy = context.policy
        mode: Literal["look", "full"] = "look"
        kind: str = "hang"
        why: BundleWhy = "stall"
        silence = Silence(phase=verdict.phase, early=verdict.early)
        stall_id = f"{len(self.state.stalls) + 1:04d}"
        out_dir = context.staging_dir / f"look-{stall_id}"
        device = isinstance(action, a.StartLook) and action.device
        if isinstance(action, a.StartEvidence):
            mode, kind, why, silence = "full", action.kind, action.bundle_why, Silence()
            device = verdict.device is not None
            stall_id, out_dir = action.stall_id, context.directory.stall(action.stall_id)
        attempt_dir = context.directory.attempt(_number(self.state))
        files = _files(attempt_dir)
        members = (sample.member for sample in sight.sample.members)
        return EvidenceRequest(
            mode=mode,
            device=device,
            verdict=BundleVerdict(
                id=stall_id,
                why=why,
                kind=kind,
                basis=verdict.basis,
                phase=verdict.phase,
                ranks=verdict.ranks,
                beat_age_s=round(verdict.age_s, 1),
                straggler=self.state.straggler,
                at=time.time(),
                attempt=_number(self.state),
                words=why_text(verdict.why),
                command=self.state.argv,
                exit=sight.exit,
                done=self._what_follows(why),
            ),
            silence=silence,
            out_dir=str(out_dir),
            staging_dir=str(context.staging_dir / f"{mode}-{stall_id}"),
            members=tuple(member for member in members if member.role != "keeper"),
            ended=(
                *map(self._as_known, self._ended()[:MOST_ENDED]),
                *self._vanished(verdict.age_s, why),
            ),
            slot_dir=str(context.slot_dir) if context.slot_dir is not None else None,
            attempt_dir=str(attempt_dir),
            log_files=tuple(str(attempt_dir / name) for name in STREAM_FILES if name in files),
            deadline_s=policy.timing.look_s if mode == "look" else policy.evidence.total_s,
            process_s=policy.evidence.process_s,
            kill_follows=mode == "full" and kills(why, policy.recovery),
            last_save=next(iter(read_saves(attempt_dir, 1)), None) if why == "crash" else None,
            oom_kills_before=context.oom_kills_before,
            gpu_seen=msgspec.structs.replace(self.gpu_seen, uses=_uses(sight.sample)),
            patience=policy.patience,
        )

    def _ended(self) -> tuple[RankEnd, ...]:
        """Without earlier failures that the script itself has recovered from."""
        behind = self.sight.exit.behind if self.sight.exit is not None else None
        ends = missing_ranks(self.sight.sample)
        return ends if behind is None else tuple(end for end in ends if end.at >= behind.at)

    def _vanished(self, age_s: float, why: BundleWhy) -> tuple[RankEnd, ...]:
        """Helpers that failed since the last progress, or shortly before it.

        After a crash also scripts with a code other than 0 or an unknown one: the output may have
        their traceback.
        """
        since = self.sight.sample.at - age_s - VANISHED_S
        return tuple(
            end
            for end in self.sight.sample.vanished
            if end.at >= since and (why == "crash" or end.signal or end.said == "exception")
        )

    def _as_known(self, end: RankEnd) -> RankEnd:
        """With the keeper's code and signal for the root, if we saw neither of them."""
        tree, told = self.state.tree(self.sight.host), self.sight.exit
        is_root = tree is not None and end.identity == tree.root
        if told is None or not is_root or (end.code, end.signal) != (None, None):
            return end
        return msgspec.structs.replace(end, code=told.code, signal=told.signal)

    def _what_follows(self, why: BundleWhy) -> tuple[str, ...]:
        """What the supervisor does next, for the reader of a bundle."""
        recovery = self.context.policy.recovery
        if why == "manual":
            return ("nothing: the evidence was asked for, the training goes on",)
        if not kills(why, recovery):
            return ("nothing is killed or changed (report only)",)
        if why == "crash" and recovery.on_crash == "restart":
            return ()  # that depends on what it was
        reaction = recovery.on_stall if why == "stall" else recovery.on_crash
        ending = "then every process of the training is ended"
        if reaction == "stop":
            return (f"{ending}, and the run stops",)
        return (f"{ending}, and it restarts from the newest valid checkpoint, if it may",)


def kills(why: BundleWhy, recovery: Recovery) -> bool:
    """Whether all processes are killed after this evidence, regardless of its result."""
    reports = recovery.observe or (why == "stall" and recovery.on_stall == "report")
    return why != "manual" and not reports


def _files(attempt_dir: Path) -> frozenset[str]:
    with suppress(OSError):
        return frozenset(names(attempt_dir))
    return frozenset()


def _number(state: State) -> int:
    return state.attempt.attempt if state.attempt is not None else 0


def _uses(sample: Sample) -> dict[int, GpuUse]:
    """Of each rank; in a container that of the job, if there is only one rank."""
    ranks = [each for each in sample.members if each.member.role == "rank"]
    if len(ranks) == 1 and sample.gpu is not None:
        return {ranks[0].member.pid: sample.gpu}
    return {each.member.pid: each.gpu for each in ranks if each.gpu is not None}
