"""Stacks by py-spy, which reads a process from outside, a child with a deadline for each.

Never attaches to a process in uninterruptible sleep, never leaves one stopped, and keeps the
reason where a tool could not read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.evidence import locks, pyspy
from watchdog_train.evidence.draft import Draft
from watchdog_train.evidence.jobs import Finished, Job, run_all
from watchdog_train.evidence.process_look import look
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.evidence.targets import ORDER, Target, in_the_kernel
from watchdog_train.explain.waits import device_call
from watchdog_train.system.protocol import ProcessSystem

_TWICE_CAP = 24
"""Processes that get a second dump; a difference proves life."""
_NATIVE_CAP = {"look": 1, "full": 4}
_DEVICE_CAP = 64
"""Ranks whose native stacks are read if they may wait for their GPUs."""
_NATIVE_S = 4.0
_LATELY_S = 10.0
"""A process with progress since then may make steps: it is not stopped for native frames."""
_OUTPUT_CAP_BYTES = 8 << 20
_SIGCONT = 18  # of Linux: only there can py-spy leave a process stopped
_UNDO_S = 0.2
_UNDO_POLL_S = 0.01


class Attaching:
    def __init__(
        self,
        request: EvidenceRequest,
        pyspy_path: str | None,
        system: ProcessSystem,
        by_pid: dict[int, Target],
        *,
        until: float,
        draft: Draft,
    ) -> None:
        """`draft` stores the result of each tool: it must outlive this process."""
        self._request = request
        self._pyspy = pyspy_path or pyspy.NAME
        self._system = system
        self._by_pid = by_pid
        self._until = until
        self._draft = draft
        self._touched: set[int] = set()
        self._stopping: set[int] = set()
        """Processes whose native frames are being read, which stops them."""

    def dump(self, targets: Sequence[Target], *, nonblocking: bool) -> None:
        """Python stacks by py-spy; a process that was stopped before is read, not attached to.

        A dump that failed for a passing reason is tried once more, without stopping the process.
        """
        failed = self._dump(targets, lambda target: nonblocking or target.was_held)
        self._dump(failed, lambda _: True)

    def _dump(
        self, targets: Sequence[Target], nonblocking: Callable[[Target], bool]
    ) -> list[Target]:
        again = []
        jobs = [self._job(target, nonblocking=nonblocking(target)) for target in targets]
        for target, threads, finished in self._run(jobs):
            if threads is not None:
                target.take(threads, "py-spy")
                continue
            target.learn(why_not=pyspy.reason(finished))
            if finished.stderr.strip():
                target.note(f"py-spy: {finished.stderr.strip()[:1000]}")
            if pyspy.may_succeed_later(finished):
                again.append(target)
        return again

    def dump_twice(self, targets: Sequence[Target]) -> None:
        wanted = [t for t in targets if t.known.how == "py-spy" and ORDER[t.member.role] <= 2]
        asks = {t.pid for t in wanted if locks.waits_for_lock_file(t.known.threads)}
        jobs = [
            self._job(t, nonblocking=True, variables=t.sleeps or t.pid in asks)
            for t in wanted[:_TWICE_CAP]
        ]
        for target, again, finished in self._run(jobs):
            if again is None:
                continue
            target.compare(again)
            if target.pid in asks:
                path = pyspy.lock_variable(finished.stdout, target.pid, target.deciding_tid)
                target.learn(lock=locks.polled(target.pid, path))
            elif target.sleeps:
                polls = pyspy.path_variable(finished.stdout, target.pid, target.deciding_tid)
                target.learn(polls=polls)

    def dump_native(self, targets: Sequence[Target]) -> None:
        """Native frames of the few processes whose Python frames cannot tell a lock from a wait."""
        mode, device = self._request.mode, self._request.device
        most = _DEVICE_CAP if device else _NATIVE_CAP[mode]
        ranks = {
            t.pid for t in targets if device and t.member.role == "rank" and t.known.how == "py-spy"
        }
        wanted = [t for t in targets if (t.wants_native or t.pid in ranks) and not t.was_held]
        if mode == "look":  # a pause only where it decides: the kernel gave no wait
            worker = [t for t in wanted if t.member.role == "worker" and t.sealed() is None]
            wanted = [t for t in wanted if t.pid in ranks] or worker
        jobs = [
            self._job(t, nonblocking=False, native=True, variables=device) for t in wanted[:most]
        ]
        self._stopping = {job.pid for job in jobs}
        for target, threads, finished in self._run(jobs):
            if threads is None:
                target.note(f"native frames: {pyspy.reason(finished)}")
                continue
            target.take(threads, "py-spy native")
            tid = target.deciding_tid
            thread = next((one for one in threads if one.os_id == tid), None)
            stands = pyspy.standing(finished.stdout, target.pid, tid)
            target.standing = stands and f"{device_call(thread)}:{stands}"

    def undo_all(self) -> None:
        """Once more at the end: a stop that a killed debugger had sent may take effect late."""
        for pid in self._touched:
            self._undo_stop(pid)

    def _job(
        self, target: Target, *, nonblocking: bool, native: bool = False, variables: bool = False
    ) -> Job:
        argv = pyspy.command(
            self._pyspy, target.pid, nonblocking=nonblocking, native=native, variables=variables
        )
        timeout_s = min(self._request.process_s, _NATIVE_S) if native else self._request.process_s
        return Job(pid=target.pid, argv=argv, timeout_s=timeout_s)

    def _run(
        self, jobs: Sequence[Job]
    ) -> Iterator[tuple[Target, tuple[ThreadStack, ...] | None, Finished]]:
        self._touched.update(job.pid for job in jobs)
        for finished in run_all(
            jobs,
            parallel=min(8, 2 * (os.cpu_count() or 2) + 2),
            until=self._until,
            output_cap_bytes=_OUTPUT_CAP_BYTES,
            directory=self._request.staging_dir,
            after=self._undo_stop,
            still_safe=self._may_attach,
            meanwhile=self._draft.keep,
        ):
            target = self._by_pid[finished.job.pid]
            good = finished.code == 0
            yield target, pyspy.parse(finished.stdout, target.pid) if good else None, finished
            self._draft.changed()

    def _may_attach(self, pid: int) -> str | None:
        """Checked right before a tool starts; the reason why it must not."""
        now, request = look(pid, 0.0), self._request
        lately_s = 0.0 if request.kill_follows else _LATELY_S
        if pid in self._stopping and self._by_pid[pid].makes_steps(request.slot_dir, lately_s):
            return "it makes steps"
        return in_the_kernel(now) if now is not None and now.state == "D" else None

    def _undo_stop(self, pid: int) -> None:
        """After a tool: a process that was not stopped before must not stay stopped."""
        target = self._by_pid[pid]
        if target.first is None or target.was_held:
            return
        until = time.monotonic() + _UNDO_S
        while True:
            now = look(pid, 0.0)
            if now is None or now.start != target.first.start or not now.stopped or now.traced:
                return
            if time.monotonic() >= until:
                break
            time.sleep(_UNDO_POLL_S)
        result = self._system.send_signal(target.identity, _SIGCONT)
        target.note(f"py-spy left it stopped; continued it ({result})")
