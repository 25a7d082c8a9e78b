"""Evidence of a whole tree: `python -m watchdog_train.evidence.collect REQUEST.json`, or a call.

Order: /proc, stacks (ranks, workers, the rest), host and logs, diagnosis, bundle. Whatever does
not answer in time is named in the bundle. It never signals a process but to ask for a dump or to
undo a stop that our own tool left behind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from watchdog_train.core.diagnose import diagnose, evidence_fingerprint
from watchdog_train.core.facts import BundleVerdict, Evidence, LockFact, ProcessEvidence
from watchdog_train.core.model import EvidenceResult, Member
from watchdog_train.core.rules import Rules
from watchdog_train.core.stacks import ThreadStack
from watchdog_train.errors import WtrainError
from watchdog_train.evidence import bundle, fault_handler, host, locks, logs, pyspy
from watchdog_train.evidence.jobs import Finished, Job, run_all
from watchdog_train.evidence.proc import is_fed_by, look
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.evidence.request import (
    RESULT_FILE,
    EvidenceRequest,
    read_request,
    write_private,
)
from watchdog_train.evidence.sources import SourceReader
from watchdog_train.evidence.targets import ORDER, Target, with_sources
from watchdog_train.rules import load_rules
from watchdog_train.system import current as current_system
from watchdog_train.system.protocol import ProcessSystem

_APART_S = 0.6
"""Between the two looks: long enough to tell 2 % of a core in clock ticks of 10 ms."""
_CLOSING_S = 1.5
"""Kept of the deadline for diagnosis and writing."""
_FAULT_HANDLER_S = 1.5
_TWICE_CAP = 24
"""Processes that get a second dump, which proves life when it differs."""
_NATIVE_CAP = {"look": 1, "full": 4}
_NATIVE_S = 4.0
_OUTPUT_CAP_BYTES = 8 << 20
SIGCONT = 18  # of Linux: only there a debugger of ours leaves somebody stopped
_UNDO_S = 0.2
_UNDO_POLL_S = 0.01
_OUTPUT_FILES = ("output.log", "stdout.log", "stderr.log")


def collect(
    request: EvidenceRequest,
    *,
    find_pyspy: Callable[[], str | None] = pyspy.find,
    system: ProcessSystem | None = None,
) -> EvidenceResult:
    """Runs one collection and writes what its mode asks for.

    Raises:
        OSError: nothing can be written, neither to the run directory nor to the staging folder.
    """
    collection = _Collection(request, find_pyspy(), system or current_system())
    collection.run()
    return collection.close()


class _Collection:
    def __init__(self, request: EvidenceRequest, binary: str | None, system: ProcessSystem) -> None:
        self.request = request
        self.binary = binary
        self.system = system
        self.started = time.monotonic()
        self.until = self.started + max(1.0, request.deadline_s - _CLOSING_S)
        self.staging = Path(request.staging_dir)
        self.staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        ends = {(end.pid, end.start): end for end in request.ended}
        members = [m for m in request.members if (m.pid, m.start) not in ends]
        members += [
            Member(pid=end.pid, start=end.start, role="rank", rank=end.rank, name="python")
            for end in request.ended
        ]
        members.sort(key=lambda m: (ORDER[m.role], m.rank or 0, m.worker or 0, m.pid))
        self.targets = [
            Target(member, time.monotonic(), ends.get((member.pid, member.start)))
            for member in members
        ]
        self.by_pid = {target.pid: target for target in self.targets if target.end is None}
        self.problems: list[str] = []
        self.touched: set[int] = set()
        """Processes that a debugger has read."""

    def run(self) -> None:
        """Everything that touches processes."""
        for target in self.targets:
            target.read_facts(self.request.slot_dir)
        if self.request.mode == "look":
            self.dump(self._eligible(), nonblocking=True)
        pause = self.started + _APART_S - time.monotonic()
        if pause > 0 and self.targets:
            time.sleep(min(pause, max(0.0, self.until - time.monotonic())))
        for target in self.targets:
            target.look_again(time.monotonic())
        for target in self.targets:
            if target.waits_for_input and is_fed_by(target.pid, self.by_pid.keys() - {target.pid}):
                target.waits_for_input = False
        if self.request.mode == "full":
            self.dump(self._eligible(), nonblocking=False)
        self.ask_fault_handlers()
        self.dump_twice()
        self.dump_native()

    def _eligible(self) -> list[Target]:
        found = []
        for target in self.targets:
            if target.why_not is not None or target.member.role == "keeper":
                target.why_not = target.why_not or "our own keeper: it only waits"
            elif target.python is False:
                name = target.first.name if target.first else "?"
                target.why_not = f"not a Python process ({name})"
            elif self.binary is None:
                target.why_not = pyspy.HINT_MISSING
            else:
                found.append(target)
        return found

    def _run(self, jobs: Sequence[Job]) -> list[Finished]:
        self.touched.update(job.pid for job in jobs)
        return run_all(
            jobs,
            parallel=min(8, 2 * (os.cpu_count() or 2) + 2),
            until=self.until,
            output_cap_bytes=_OUTPUT_CAP_BYTES,
            directory=str(self.staging),
            after=self.undo_stop,
        )

    def _job(self, target: Target, *, nonblocking: bool, native: bool = False) -> Job:
        argv = pyspy.command(
            self.binary or pyspy.NAME, target.pid, nonblocking=nonblocking, native=native
        )
        timeout_s = min(self.request.process_s, _NATIVE_S) if native else self.request.process_s
        return Job(pid=target.pid, argv=argv, timeout_s=timeout_s)

    def dump(self, targets: Sequence[Target], *, nonblocking: bool) -> None:
        """Python stacks; a process that was stopped before is only read, not attached to."""
        jobs = [self._job(t, nonblocking=nonblocking or t.was_held) for t in targets]
        for finished in self._run(jobs):
            target = self.by_pid[finished.job.pid]
            threads = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if threads is None:
                target.why_not = pyspy.reason(finished)
                if finished.stderr.strip():
                    target.notes.append(f"py-spy: {finished.stderr.strip()[:1000]}")
            else:
                target.take(threads, "py-spy")

    def undo_stop(self, pid: int) -> None:
        """After a debugger: a process that was not stopped before must not stay stopped."""
        target = self.by_pid[pid]
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
        result = self.system.send_signal(target.identity, SIGCONT)
        target.notes.append(f"py-spy left it stopped; continued it ({result})")

    def ask_fault_handlers(self) -> None:
        """Where py-spy could not: the handler that the client registered, all at once."""
        slot_dir = self.request.slot_dir
        if slot_dir is None:
            return
        asked: list[tuple[Target, str, int]] = []
        for target in self.targets:
            state = target.last.state if target.last else "Z"
            if target.how is not None or target.python is False or state in "DTtZX":
                continue
            answer = fault_handler.request(self.system, slot_dir, target.identity)
            if isinstance(answer, str):
                target.why_not = f"{target.why_not or 'no stack'}; {answer}"
            else:
                asked.append((target, *answer))
        until = min(self.until, time.monotonic() + _FAULT_HANDLER_S)
        for target, path, old_bytes in asked:
            text = fault_handler.answer(path, old_bytes, until)
            threads = fault_handler.parse(text) if text else None
            if threads is None:
                target.why_not = f"{target.why_not or 'no stack'}; its fault handler did not answer"
            else:
                problem = f"py-spy did not work: {target.why_not}"
                target.notes.append(problem)
                weaker = f"{problem}; stacks are from the fault handler"
                if weaker not in self.problems:
                    self.problems.append(weaker)
                target.take(threads, "fault handler")

    def dump_twice(self) -> None:
        """A second dump of ranks and workers: what moved is alive."""
        wanted = [t for t in self.targets if t.how == "py-spy" and ORDER[t.member.role] <= 2]
        jobs = [self._job(target, nonblocking=True) for target in wanted[:_TWICE_CAP]]
        for finished in self._run(jobs):
            target = self.by_pid[finished.job.pid]
            again = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if again is not None:
                target.compare(again)

    def dump_native(self) -> None:
        """Native frames of the few processes whose Python frames cannot tell a lock from a wait."""
        cap = _NATIVE_CAP[self.request.mode]
        wanted = [t for t in self.targets if t.wants_native and not t.was_held]
        if self.request.mode == "look":  # a pause only where it decides: the kernel did not tell
            wanted = [t for t in wanted if t.member.role == "worker" and t.sealed() is None]
        jobs = [self._job(target, nonblocking=False, native=True) for target in wanted[:cap]]
        for finished in self._run(jobs):
            target = self.by_pid[finished.job.pid]
            threads = pyspy.parse(finished.stdout, target.pid) if finished.code == 0 else None
            if threads is not None:
                target.take(threads, "py-spy native")
            else:
                target.notes.append(f"native frames: {pyspy.reason(finished)}")

    def close(self) -> EvidenceResult:
        """Diagnosis, files, result."""
        request = self.request
        sources = SourceReader()
        for target in self.targets:
            target.threads = with_sources(target.threads, sources.line)
        facts, details = host.collect(
            [path for path in (request.attempt_dir, os.getcwd()) if path],
            request.oom_kills_before,
        )
        evidence = Evidence(
            why=request.why,
            processes=tuple(target.evidence() for target in self.targets),
            logs=logs.tails(self._log_files(), request.log_tail_lines),
            exit=request.exit,
            host=facts,
            locks=self._locks(),
            world_size=self._world_size(),
        )
        diagnosis, patience = diagnose(evidence, self._rules())
        # A stop that a killed debugger had sent may take effect only after it is gone.
        for pid in self.touched:
            self.undo_stop(pid)
        result = EvidenceResult(
            stall_id=request.stall_id,
            dir=request.out_dir,
            processes=tuple(target.row() for target in self.targets),
            diagnosis=diagnosis,
            patience=patience,
            fingerprint=evidence_fingerprint(evidence, diagnosis),
            seconds=round(time.monotonic() - self.started, 3),
            problem="; ".join(self.problems) or None,
        )
        if request.mode == "look":
            return _publish_look(request, result)
        whole = bundle.Bundle(
            verdict=_verdict(request, result),
            diagnosis=diagnosis,
            evidence=evidence,
            records=tuple(map(_record, self.targets, evidence.processes)),
            host=bundle.HostRecord(facts=facts, details=details),
        )
        bundle.write_staged(self.staging, whole)
        return bundle.publish(self.staging, Path(request.out_dir), result)

    def _world_size(self) -> int | None:
        """As the ranks' environment has it; on several nodes not all of them are here."""
        sizes = (t.environment.get("WORLD_SIZE", "") for t in self.targets)
        return next((int(size) for size in sizes if size.isdigit() and len(size) < 7), None)

    def _locks(self) -> tuple[LockFact, ...]:
        waiting = [t for t in self.targets if locks.waits_for_lock_file(t.threads)]
        return tuple(fact for target in waiting[:8] for fact in locks.find(target.pid))

    def _log_files(self) -> tuple[str, ...]:
        folder = self.request.attempt_dir
        if self.request.log_files or folder is None:
            return self.request.log_files
        return tuple(os.path.join(folder, name) for name in _OUTPUT_FILES)

    def _rules(self) -> Rules:
        """A broken rule file of the user's must not cost the diagnosis."""
        try:
            return load_rules(self.request.rules_dirs)
        except WtrainError as error:
            self.problems.append(f"rule files of yours are not used: {error.message}")
            return load_rules()


def _publish_look(request: EvidenceRequest, result: EvidenceResult) -> EvidenceResult:
    content = msgspec.json.encode(result)
    try:
        Path(request.out_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(Path(request.out_dir) / RESULT_FILE, content)
    except OSError:
        write_private(Path(request.staging_dir) / RESULT_FILE, content)
    return result


def _verdict(request: EvidenceRequest, result: EvidenceResult) -> BundleVerdict:
    given = request.verdict
    return msgspec.convert(
        {
            **{name: given[name] for name in _VERDICT_FIELDS if given.get(name) is not None},
            "id": request.stall_id,
            "why": request.why,
            "at": given.get("at") or time.time(),
            "words": given.get("why") or given.get("words") or "",
            "processes": msgspec.to_builtins(result.processes),
            "command": redact_argv(request.command),
            "exit": msgspec.to_builtins(request.exit),
            "patience": result.patience,
            "fingerprint": result.fingerprint,
            "seconds": result.seconds,
            "problem": result.problem,
            "done": request.done,
        },
        BundleVerdict,
    )


_VERDICT_FIELDS = ("kind", "basis", "phase", "ranks", "beat_age_s", "attempt")


def _record(target: Target, facts: ProcessEvidence) -> bundle.ProcessRecord:
    threads: tuple[ThreadStack, ...] = ()
    return bundle.ProcessRecord(
        facts=msgspec.structs.replace(facts, threads=threads),
        stack_file=f"{bundle.stack_name(facts)}.json" if facts.threads else None,
        environment_names=target.environment_names,
        files=target.files,
        kernel_stack=target.kernel_stack,
        notes=tuple(target.notes),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the collection that a request file asks for."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        print("usage: python -m watchdog_train.evidence.collect REQUEST.json", file=sys.stderr)
        return 78
    collect(read_request(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
