"""Evidence of a process tree: `python -m watchdog_train.evidence.collect REQUEST.json`, or a call.

Order: /proc, stacks (ranks, workers, the rest), host and logs, diagnosis, bundle. Whatever does
not answer in time is named in the bundle. It never signals a process but to undo a stop that our
own tool left behind, or to ask for a last dump before a kill that follows in any case.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.core.diagnosis.crash import crash_of, named_path, with_senders
from watchdog_train.core.diagnosis.facts import Evidence, How, LockFact, LogText, ProcessEvidence
from watchdog_train.core.diagnosis.places import evidence_fingerprint
from watchdog_train.core.model import CrashFact, EvidenceResult, ExceptionFact, Member
from watchdog_train.core.model.gpu import DeviceLook
from watchdog_train.evidence import (
    bundle,
    exceptions,
    from_inside,
    host,
    kernel_log,
    locks,
    logs,
    pyspy,
)
from watchdog_train.evidence.attaching import Attaching
from watchdog_train.evidence.busy_wait import asks_at
from watchdog_train.evidence.draft import CUT_SHORT, Draft
from watchdog_train.evidence.full_disk import full_disk
from watchdog_train.evidence.installed_families import all_families
from watchdog_train.evidence.process_look import is_fed_by, thread_reader
from watchdog_train.evidence.recorders import Recorders
from watchdog_train.evidence.redact import write_json
from watchdog_train.evidence.request import (
    RESULT_FILE,
    EvidenceRequest,
    read_request,
    without_secrets,
)
from watchdog_train.evidence.sources import SourceReader
from watchdog_train.evidence.targets import ORDER, Target, with_sources
from watchdog_train.explain import patience
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.judge import judge
from watchdog_train.explain.waits import as_raised, deciding_thread, device_call
from watchdog_train.system import current as current_system
from watchdog_train.system.cgroup import swap_bytes
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import make_folder

_APART_S = 0.6
"""Between the two samples: long enough to measure 2 % of a core in clock ticks of 10 ms."""
_CLOSING_S = 1.5
"""Part of the deadline that is kept for diagnosis and writing."""
_ASKING_S = from_inside.PULSE_ANSWERS_S + from_inside.HANDLER_ANSWERS_S
_OUTPUT_FILES = ("output.log", "stdout.log", "stderr.log")


def collect(
    request: EvidenceRequest,
    *,
    find_pyspy: Callable[[], str | None] = pyspy.find,
    system: ProcessSystem | None = None,
) -> EvidenceResult:
    """Run one collection and write what its mode asks for.

    Raises:
        OSError: nothing can be written, neither to the run directory nor to the staging folder.
    """
    request = without_secrets(request)
    collection = _Collection(request, find_pyspy(), system or current_system())
    try:
        collection.run()
        if signal.getsignal(signal.SIGTERM) is _cut_short:  # what follows is the end anyway
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except CutShortError:
        collection.cut_short = True
        collection.problems.append(CUT_SHORT)
    return collection.close()


class CutShortError(Exception):
    """SIGTERM: the caller wants the evidence collected so far, now."""


def _cut_short(_number: int, _frame: object) -> None:
    """Handler of SIGTERM, once: after it the collector only writes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise CutShortError


class _Collection:
    def __init__(
        self, request: EvidenceRequest, pyspy_path: str | None, system: ProcessSystem
    ) -> None:
        self.request = request
        self.pyspy = pyspy_path
        self.system = system
        self.started = time.monotonic()
        self.until = self.started + max(1.0, request.deadline_s - _CLOSING_S)
        self.staging = Path(request.staging_dir)
        make_folder(self.staging)
        ends = {(end.pid, end.start): end for end in request.ended}
        members = [m for m in request.members if (m.pid, m.start) not in ends]
        members += [
            end.helper
            or Member(pid=end.pid, start=end.start, role="rank", rank=end.rank, name="python")
            for end in request.ended
        ]
        members.sort(key=lambda m: (ORDER[m.role], m.rank or 0, m.worker or 0, m.pid))
        reader = thread_reader()  # before any tool: a signal hides what a thread waits for
        self.targets = [
            Target(
                member,
                time.monotonic(),
                reader,
                ends.get((member.pid, member.start)),
                request.gpu_seen.uses.get(member.pid),
            )
            for member in members
        ]
        self.by_pid = {target.pid: target for target in self.targets if target.end is None}
        self.problems: list[str] = []
        self.cut_short = False
        self.swap_before = swap_bytes()
        # Tools that hang must leave time to ask the processes from inside.
        kept_s = _ASKING_S if request.slot_dir is not None else 0.0
        tools_until = max(self.started + 1.0, self.until - kept_s)
        ranks = {t.pid: t.member.rank for t in self.targets if t.end is None}
        self.recorders = Recorders(
            request.slot_dir,
            request.attempt_dir,
            {pid: rank for pid, rank in ranks.items() if rank is not None},
        )
        self.draft = Draft(request, self.targets, self.started)
        self.attaching = Attaching(
            request, pyspy_path, system, self.by_pid, until=tools_until, draft=self.draft
        )

    def run(self) -> None:
        self.recorders.first_look()
        for target in self.targets:
            target.read_facts(self.request.slot_dir)
        self.draft.keep_now()
        if self.request.mode == "look":
            self.attaching.dump(self._eligible(), nonblocking=True)
        pause = self.started + _APART_S - time.monotonic()
        # After a crash no process may be left to compare, and the next attempt waits.
        if pause > 0 and any(target.is_alive for target in self.targets):
            time.sleep(min(pause, max(0.0, self.until - time.monotonic())))
        reader = thread_reader()
        for target in self.targets:
            target.look_again(time.monotonic(), reader)
        for target in self.targets:
            others = self.by_pid.keys() - {target.pid}
            if target.known.waits_for_input and is_fed_by(target.pid, others):
                target.learn(waits_for_input=False)
        if self.request.mode == "full":
            self.attaching.dump(self._eligible(), nonblocking=False)
        self.ask_from_inside()
        self.draft.keep_now()
        self.attaching.dump_twice(self.targets)
        self.attaching.dump_native(self.targets)

    def _eligible(self) -> list[Target]:
        found = []
        for target in self.targets:
            why = target.known.why_not
            if target.member.role == "keeper":
                target.learn(why_not=why or "our own keeper: it only waits")
            elif not target.may_be_attached():
                continue
            elif target.python is False:
                name = target.first.name if target.first else "?"
                target.learn(why_not=f"not a Python process ({name})")
            elif self.pyspy is None:
                target.learn(why_not=pyspy.HINT_MISSING)
            else:
                found.append(target)
        return found

    def _without_stacks(self) -> list[Target]:
        """Python processes without stacks that can write them themselves."""
        return [
            target
            for target in self.targets
            if target.known.how is None
            and target.python is not False
            and target.member.role != "keeper"
            and (target.last.state if target.last else "Z") not in "DZX"
        ]

    def ask_from_inside(self) -> None:
        """If no tool could: the process writes its stacks itself.

        Its pulse thread holds the interpreter lock meanwhile, so no frame changes while it is read.
        The handler of a signal holds no lock: beside threads that run it can read a freed frame and
        end the process with SIGSEGV (seen after 2 to 616 signals).
        """
        slot_dir = self.request.slot_dir
        if slot_dir is None:
            return
        wanted = [t for t in self._without_stacks() if t.last and not t.last.stopped]
        asked = from_inside.ask_by_page(slot_dir, [t.identity for t in wanted]) if wanted else {}
        if isinstance(asked, str):
            for target in wanted:
                target.add_why(asked)
        else:
            self._hear(list(asked.values()), "control page", from_inside.PULSE_ANSWERS_S)
        handlers = []
        for target in wanted if self.request.kill_follows else ():
            if target.known.how is not None:
                continue
            answer = from_inside.ask_by_signal(self.system, slot_dir, target.identity)
            if isinstance(answer, str):
                target.add_why(answer)
            else:
                handlers.append(answer)
        self._hear(handlers, "fault handler", from_inside.HANDLER_ANSWERS_S)

    def _hear(self, asked: list[from_inside.Asked], how: How, answers_s: float) -> None:
        from_inside.wait_for(asked, min(self.until, time.monotonic() + answers_s))
        who = "pulse thread" if how == "control page" else how
        for one in asked:
            target = self.by_pid[one.who.pid]
            text = one.text()
            threads = from_inside.parse(text) if text else None
            if threads is None:
                target.add_why(f"its {who} did not answer")
                continue
            problem = f"py-spy did not work: {target.known.why_not}"
            target.note(problem)
            weaker = f"{problem}; stacks are from the {how}"
            if weaker not in self.problems:
                self.problems.append(weaker)
            target.take(threads, how)

    def close(self) -> EvidenceResult:
        request = self.request
        recorded, collectives = ((), ()) if self.cut_short else self.recorders.last_look()
        for pid in self.recorders.silent:
            self.by_pid[pid].note("torch's worker server did not answer")
        sources = SourceReader()
        for target in self.targets:
            target.learn(threads=with_sources(target.known.threads, sources.line))
        facts, details = host.collect(
            [path for path in (request.attempt_dir, os.getcwd()) if path],
            request.oom_kills_before,
        )
        facts = msgspec.structs.replace(facts, gpu_others=request.gpu_seen.others)
        kernel_lines = self._machine(details)
        facts = msgspec.structs.replace(facts, swap_bytes_s=details.get("swap_bytes_s"))
        output = logs.tails(self._log_files(), logs.TAIL_LINES)
        processes, raised = exceptions.of_hooks(
            request.slot_dir,
            request.verdict.attempt,
            [self._fact(target, sources) for target in self.targets],
            self._progress_at(),
            sources.tree,
        )
        progressed_at = self._last_beat_at()
        elastic = exceptions.of_elastic(request.attempt_dir)
        printed = exceptions.of_output(self._log_files(), progressed_at)
        others = (*raised, *((elastic,) if elastic is not None else ()), *printed)
        all_logs = (*output, *kernel_lines)
        evidence = Evidence(
            why=request.verdict.why,
            processes=with_senders(processes, all_logs, facts),
            logs=all_logs,
            exceptions=others,
            progressed_at=progressed_at,
            exit=request.verdict.exit,
            host=facts,
            locks=self._locks(),
            collectives=collectives,
            exchanging=self.recorders.exchanging,
            world_size=self._world_size(),
        )
        chains = Chains(evidence)
        told = as_raised(evidence)
        families, warnings = all_families()
        seen = Chains(told) if told != evidence else chains
        found = judge(told, self.request.verdict.beat_age_s, seen, families)
        self.problems += warnings
        granted = patience.judge(chains, silence=request.silence, limits=request.patience)
        self.attaching.undo_all()
        if self.draft.problem is not None:
            self.problems.append(self.draft.problem)
        crash = self._crash(evidence, found.died)
        verdict = msgspec.structs.replace(
            request.verdict,
            processes=tuple(target.row() for target in self.targets),
            patience=granted,
            fingerprint=evidence_fingerprint(evidence, found.family, crash),
            seconds=round(time.monotonic() - self.started, 3),
            crash=crash,
            problem="; ".join(self.problems) or None,
            hostname=socket.gethostname(),
        )
        out = Path(request.out_dir)
        device = self._device() if request.device and request.mode == "look" else None
        result = bundle.result_of(verdict, request.out_dir, found, device)
        if request.mode == "look":
            make_folder(out)
            write_json(out / RESULT_FILE, result)
            return result
        processes = tuple(
            msgspec.structs.replace(one, notes=target.known.notes)  # also of undo_all()
            for one, target in zip(evidence.processes, self.targets, strict=True)
        )
        evidence = msgspec.structs.replace(evidence, processes=processes)
        whole = bundle.Bundle(verdict=verdict, explanation=found, evidence=evidence)
        bundle.write_staged(self.staging, whole, details)
        bundle.write_recorders(self.staging, {one.rank: one.data for one in recorded})
        return bundle.publish(self.staging, out, result)

    def _last_beat_at(self) -> float | None:
        """The last beat or step of the ranks that have ended, in Unix seconds."""
        newest = max((end.beat_ns for end in self.request.ended), default=0)
        return time.time() - time.monotonic() + newest / 1e9 if newest else None

    def _fact(self, target: Target, sources: SourceReader) -> ProcessEvidence:
        fact = target.evidence()
        return msgspec.structs.replace(fact, asks=asks_at(fact, sources.tree))

    def _device(self) -> DeviceLook:
        ranks = [t for t in self.targets if t.member.role == "rank" and t.is_alive]
        stands = [target.standing for target in ranks]
        calls = (device_call(deciding_thread(target.evidence())) for target in ranks)
        return DeviceLook(
            stands=" ".join(stands) if all(stands) else "",
            waits=any(calls),
            others_cpu_s=sum(t.others_cpu_s() for t in self.targets if t.is_alive),
        )

    def _progress_at(self) -> float | None:
        """Unix seconds of the last progress; before it batches that were ready were used up."""
        since_s = self.request.verdict.beat_age_s
        ago_s = time.monotonic() - self.started
        return time.time() - ago_s - since_s - exceptions.RECENT_S if since_s is not None else None

    def _crash(self, evidence: Evidence, died: ExceptionFact | None) -> CrashFact | None:
        request = self.request
        shared = bool(request.gpu_seen.others)
        crash = crash_of(evidence, request.verdict.command, gpu_shared=shared)
        if crash is None and died is not None and evidence.why == "stall":
            crash = CrashFact(exception=died, rank=died.rank, pid=died.pid, stays=True)
        if crash is None or crash.exception is None:
            return crash
        path = named_path(crash.exception)
        network = path is not None and self.system.on_network_file_system(Path(path))
        disk = full_disk(crash.exception, request.last_save, os.getcwd())
        return msgspec.structs.replace(crash, network_path=bool(network), disk=disk)

    def _machine(self, details: dict[str, Any]) -> tuple[LogText, ...]:
        """More facts about the machine, and the lines of its kernel log that are about this run."""
        before, passed_s = self.swap_before, time.monotonic() - self.started
        now = swap_bytes() if passed_s >= _APART_S else None  # no rate of a moment
        if before is not None and now is not None:
            details["swap_bytes_s"] = round((now - before) / passed_s)
        details["gpu"] = self.request.gpu_seen
        starts = [target.identity.start for target in self.targets]
        told = tuple(
            f"NVRM: Xid ({'GPU' if xid.index is None else f'GPU {xid.index}'}): {xid.code}, "
            "reported through NVML"
            for xid in self.request.gpu_seen.xids
        )
        lines, problem = kernel_log.read(kernel_log.started_at(starts))
        details["kernel_log"] = lines
        if problem is not None:
            details["kernel_log_problem"] = problem
        pids = {target.pid for target in self.targets}
        uses_gpu = any(target.uses_gpu for target in self.targets)
        found = kernel_log.evidence(lines, pids, uses_gpu=uses_gpu)
        return (*found, LogText(source="NVML", lines=told)) if told else found

    def _world_size(self) -> int | None:
        """From the ranks' environment or slots; on several nodes not all of them are here."""
        sizes = (t.known.environment.get("WORLD_SIZE", "") for t in self.targets)
        named = [int(size) for size in sizes if size.isdigit() and len(size) < 7]
        return max([*named, *(t.world_size for t in self.targets)], default=0) or None

    def _locks(self) -> tuple[LockFact, ...]:
        waiting = [t for t in self.targets if locks.waits_for_lock_file(t.known.threads)]
        return tuple(fact for target in waiting[:8] for fact in locks.find(target.pid))

    def _log_files(self) -> tuple[str, ...]:
        folder = self.request.attempt_dir
        if self.request.log_files or folder is None:
            return self.request.log_files
        return tuple(os.path.join(folder, name) for name in _OUTPUT_FILES)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1:
        print("usage: python -m watchdog_train.evidence.collect REQUEST.json", file=sys.stderr)
        return 78
    signal.signal(signal.SIGTERM, _cut_short)
    collect(read_request(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
