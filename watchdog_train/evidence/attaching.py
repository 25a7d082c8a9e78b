"""Stacks by tools that read a process from outside, each a child with a deadline.

Never attaches to a process in uninterruptible sleep, never leaves one stopped, and keeps the
reason where a tool could not read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from watchdog_train.core.model import Value
from watchdog_train.evidence import other_tools, pyspy
from watchdog_train.evidence.draft import Draft
from watchdog_train.evidence.jobs import Finished, Job, run_all
from watchdog_train.evidence.process_look import look
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.evidence.targets import ORDER, Target, in_the_kernel
from watchdog_train.evidence.text.formats import Tool
from watchdog_train.system.protocol import ProcessSystem

_TWICE_CAP = 24
"""Processes that get a second dump, which proves life when it differs."""
_NATIVE_CAP = {"look": 1, "full": 4}
_NATIVE_S = 4.0
_OTHER_TOOL_S = 5.0
_OUTPUT_CAP_BYTES = 8 << 20
_SIGCONT = 18  # of Linux: only there a debugger of ours leaves somebody stopped
_UNDO_S = 0.2
_UNDO_POLL_S = 0.01


class Tools(Value):
    """Paths of the programs that may be used; None where there is none."""

    pyspy: str | None
    pystack: str | None
    sample: str | None


class Attaching:
    """What one collection reads by tools."""

    def __init__(
        self,
        request: EvidenceRequest,
        tools: Tools,
        system: ProcessSystem,
        by_pid: dict[int, Target],
        *,
        until: float,
        draft: Draft,
    ) -> None:
        """`draft` is told of what each tool has found: it must not be lost with us."""
        self._request = request
        self._tools = tools
        self._system = system
        self._by_pid = by_pid
        self._until = until
        self._draft = draft
        self._touched: set[int] = set()
        self._refused: set[int] = set()

    def dump(self, targets: Sequence[Target], *, nonblocking: bool) -> None:
        """Python stacks by py-spy; a process that was stopped before is read, not attached to.

        What failed for a reason that may be over is tried once more, without stopping it.
        """
        failed = self._dump(targets, lambda target: nonblocking or target.was_held)
        self._dump(failed, lambda _: True)

    def _dump(
        self, targets: Sequence[Target], nonblocking: Callable[[Target], bool]
    ) -> list[Target]:
        again = []
        jobs = [self._job(target, nonblocking=nonblocking(target)) for target in targets]
        for finished in self._run(jobs):
            target = self._by_pid[finished.job.pid]
            threads = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if threads is not None:
                target.take(threads, "py-spy")
                continue
            target.why_not = pyspy.reason(finished)
            if finished.stderr.strip():
                target.note(f"py-spy: {finished.stderr.strip()[:1000]}")
            if pyspy.is_refused(finished):
                self._refused.add(target.pid)
            elif pyspy.may_succeed_later(finished):
                again.append(target)
        return again

    def dump_otherwise(self, targets: Sequence[Target]) -> None:
        """Pystack where py-spy failed and attaching is not refused; `sample` on macOS."""
        tools = self._tools
        if tools.pystack is not None:
            wanted = [t for t in targets if t.pid not in self._refused]
            self._other(wanted, tools.pystack, other_tools.pystack_command, "pystack")
        if tools.sample is not None:
            wanted = [t for t in targets if t.how is None]
            self._other(wanted, tools.sample, other_tools.sample_command, "sample")

    def _other(
        self,
        targets: Sequence[Target],
        binary: str,
        command: Callable[[str, int], tuple[str, ...]],
        tool: Tool,
    ) -> None:
        timeout_s = min(self._request.process_s, _OTHER_TOOL_S)
        jobs = [Job(pid=t.pid, argv=command(binary, t.pid), timeout_s=timeout_s) for t in targets]
        for finished in self._run(jobs):
            target = self._by_pid[finished.job.pid]
            threads = other_tools.parse(finished, tool)
            if threads is None:
                target.why_not = f"{target.why_not}; {other_tools.reason(finished, tool)}"
            else:
                target.note(f"py-spy did not work: {target.why_not}")
                target.take(threads, "pystack" if tool == "pystack" else "sample")

    def dump_twice(self, targets: Sequence[Target]) -> None:
        """A second dump of ranks and workers: what moved is alive."""
        wanted = [t for t in targets if t.how == "py-spy" and ORDER[t.member.role] <= 2]
        jobs = [self._job(t, nonblocking=True, variables=t.sleeps) for t in wanted[:_TWICE_CAP]]
        for finished in self._run(jobs):
            target = self._by_pid[finished.job.pid]
            again = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if again is not None:
                target.compare(again)
                tid = target.deciding_tid or target.pid
                if target.sleeps:
                    target.polls = pyspy.path_variable(finished.stdout, target.pid, tid)

    def dump_native(self, targets: Sequence[Target]) -> None:
        """Native frames of the few processes whose Python frames cannot tell a lock from a wait."""
        mode = self._request.mode
        wanted = [t for t in targets if t.wants_native and not t.was_held]
        if mode == "look":  # a pause only where it decides: the kernel did not tell
            wanted = [t for t in wanted if t.member.role == "worker" and t.sealed() is None]
        jobs = [self._job(t, nonblocking=False, native=True) for t in wanted[: _NATIVE_CAP[mode]]]
        for finished in self._run(jobs):
            target = self._by_pid[finished.job.pid]
            threads = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if threads is not None:
                target.take(threads, "py-spy native")
            else:
                target.note(f"native frames: {pyspy.reason(finished)}")

    def undo_all(self) -> None:
        """Once more at the end: a stop that a killed debugger had sent may take effect late."""
        for pid in self._touched:
            self._undo_stop(pid)

    def _job(
        self, target: Target, *, nonblocking: bool, native: bool = False, variables: bool = False
    ) -> Job:
        binary = self._tools.pyspy or pyspy.NAME
        argv = pyspy.command(
            binary, target.pid, nonblocking=nonblocking, native=native, variables=variables
        )
        timeout_s = min(self._request.process_s, _NATIVE_S) if native else self._request.process_s
        return Job(pid=target.pid, argv=argv, timeout_s=timeout_s)

    def _run(self, jobs: Sequence[Job]) -> Iterator[Finished]:
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
            yield finished
            self._draft.changed()

    def _may_attach(self, pid: int) -> str | None:
        """Asked right before a tool starts; why not, when the process went into the kernel."""
        now = look(pid, 0.0)
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
