"""Does one process, one of its threads, or the machine fit a clause of a rule? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_train.core.diagnosis.facts import (
    BUSY_CPU_SHARE,
    FLAT_CPU_SHARE,
    Evidence,
    HostFacts,
    ProcessEvidence,
)
from watchdog_train.core.diagnosis.first_failure import FirstFailure
from watchdog_train.core.diagnosis.idle import is_idle_helper, is_idle_process, is_idle_worker
from watchdog_train.core.diagnosis.log_lines import LINE_CAP
from watchdog_train.core.diagnosis.log_search import compiled
from watchdog_train.core.diagnosis.rules import HostClause, ProcessClause, Signature
from watchdog_train.core.diagnosis.stacks import (
    Frame,
    ThreadStack,
    deciding_frame,
    find_chain,
    frame_matches,
    own_frames,
)
from watchdog_train.core.model import waits as w

_KERNEL_FRAMES_CAP = 64


def asks_for_stack(clause: ProcessClause) -> bool:
    """Whether a clause says anything about frames."""
    return bool(
        clause.chain
        or clause.top
        or clause.without
        or clause.source
        or clause.native is not None
        or clause.gil_holder is not None
        or clause.thread == "other"
    )


def process_fits(clause: ProcessClause, process: ProcessEvidence) -> bool:
    """All of a clause but its frames."""
    return (
        (not clause.roles or process.role in clause.roles)
        and (not clause.state or process.state in clause.state)
        and (not clause.ranks or process.rank in clause.ranks)
        and _cpu_fits(clause.cpu, process.cpu_share)
        and _is_or_unasked(clause.sealed, process.sealed)
        and (clause.outside is None or clause.outside is _is_outside(process.wait))
        and _is_or_unasked(clause.changed, process.changed)
        and _is_or_unasked(clause.captured, process.how is not None)
        and _is_or_unasked(clause.waits_for_input, process.waits_for_input)
        and _is_or_unasked(clause.forked, process.forked if clause.forked is not None else None)
        and (clause.spawned is None or clause.spawned is (process.forked is False))
        and (clause.idle_worker is None or clause.idle_worker is is_idle_worker(process.threads))
        and (clause.idle is None or clause.idle is is_idle_process(process.threads))
        and (not clause.wchan or _kernel_fits(clause.wchan, process))
        and (clause.active is None or clause.active is _active(process))
        and (clause.command is None or _command_fits(clause.command, process.command))
        and all(
            name in process.environment and compiled(pattern).search(process.environment[name])
            for name, pattern in clause.environment.items()
        )
    )


def _is_or_unasked(wanted: bool | None, actual: bool | None) -> bool:
    return wanted is None or wanted is actual


def _command_fits(pattern: str, command: Sequence[str]) -> bool:
    return compiled(pattern).search(" ".join(command)[:LINE_CAP]) is not None


def _kernel_fits(patterns: Sequence[str], process: ProcessEvidence) -> bool:
    """The waiting place, or any frame of the kernel stack."""
    places = [process.wchan] if process.wchan else []
    places += process.kernel[:_KERNEL_FRAMES_CAP]
    return any(compiled(pattern).search(place) for pattern in patterns for place in places)


def _active(process: ProcessEvidence) -> bool | None:
    """Whether a tool saw its main thread run; None when the tool does not tell."""
    main = process.main
    return main.active if main else None


def _cpu_fits(wanted: str | None, share: float | None) -> bool:
    match wanted:
        case "flat":
            return share is not None and share < FLAT_CPU_SHARE
        case "busy":
            return share is not None and share >= BUSY_CPU_SHARE
        case "not-busy":
            return share is None or share < BUSY_CPU_SHARE
        case _:
            return True


def thread_fits(clause: ProcessClause, thread: ThreadStack) -> bool:
    """What a clause says about frames."""
    if clause.thread != "any" and thread.main != (clause.thread == "main"):
        return False
    if not thread.frames or (is_idle_helper(thread) and not clause.helpers):
        return False
    if not _is_or_unasked(clause.gil_holder, thread.owns_gil):
        return False
    frames = own_frames(thread.frames)
    if clause.native is not None and clause.native != any(frame.native for frame in frames):
        return False
    if clause.chain and not find_chain(clause.chain, frames):
        return False
    if clause.top and not _at_top(clause, frames):
        return False
    if any(frame_matches(pattern, frame) for pattern in clause.without for frame in frames):
        return False
    if clause.source is not None:
        deciding = deciding_frame(frames)
        source = deciding.source if deciding else None
        return source is not None and compiled(clause.source).search(source[:LINE_CAP]) is not None
    return True


def _at_top(clause: ProcessClause, frames: Sequence[Frame]) -> bool:
    """Among the innermost frames; native ones above a Python frame do not push it down."""
    python = [frame for frame in frames if not frame.native]
    tops = [*frames[: clause.depth], *python[: clause.depth]]
    return any(frame_matches(wanted, frame) for wanted in clause.top for frame in tops)


def exit_fits(
    signature: Signature, evidence: Evidence, failure: FirstFailure | None = None
) -> bool:
    """Whether the training, or the rank of it that failed first, ended as the signature says."""
    if not signature.exit_signal and not signature.exit_code:
        return True
    if failure is not None and failure.signals & set(signature.exit_signal):
        return True
    end = evidence.exit
    if end is None:
        return False
    # A shell or launcher in between turns a signal into 128+N, Python's own launchers into -N.
    signals = {end.signal}
    if end.code is not None:
        signals |= {end.code - 128 if end.code > 128 else None, -end.code if end.code < 0 else None}
    return bool(signals & set(signature.exit_signal)) or end.code in signature.exit_code


def host_fits(clause: HostClause | None, host: HostFacts) -> bool:
    """Whether the machine is as the clause says; what is unknown does not fit."""
    if clause is None:
        return True
    killed = bool(host.oom_kills) and host.oom_since_start
    possible = killed or not (host.oom_since_start and host.oom_kills == 0)
    return (
        (clause.oom_killed is None or clause.oom_killed == killed)
        and (clause.oom_possible is None or clause.oom_possible == possible)
        and (clause.gpu_shared is None or clause.gpu_shared == bool(host.gpu_others))
        and _over(host.shm_used_share, clause.shm_used_over)
        and _over(host.swap_used_share, clause.swap_used_over)
        and _over(host.swap_bytes_s, clause.swap_bytes_s_over)
        and _over(host.load_per_core, clause.load_over)
        and (
            clause.memory_available_under is None
            or (
                host.memory_available_share is not None
                and host.memory_available_share < clause.memory_available_under
            )
        )
    )


def _over(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value > limit)


def _is_outside(wait: w.Wait | None) -> bool:
    """Whether it waits for a file, a device, or the other end of something."""
    match wait:
        case w.TcpWait(call="accept") | w.PipeWait(listens=True):
            return False
        case w.FileWait() | w.DeviceWait() | w.FileLockWait() | w.TcpWait() | w.PipeWait():
            return True
    return False
