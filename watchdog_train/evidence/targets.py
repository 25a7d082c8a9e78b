"""One process of a collection: two samples, and its stacks or the reason why not."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from msgspec.structs import replace

from watchdog_train.client import layout
from watchdog_train.core.detection.rank_gone import ending
from watchdog_train.core.diagnosis.facts import EndFact, How, ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper, is_idle_worker, places_at_work
from watchdog_train.core.diagnosis.stacks import (
    WAITS,
    ThreadStack,
    frame_matches,
    own_frames,
    printable,
)
from watchdog_train.core.model import CapturedProcess, Member, Milestone, ProcessId, RankEnd
from watchdog_train.core.model.gpu import FLAT_UTIL, GpuUse
from watchdog_train.core.model.waits import SleepWait
from watchdog_train.core.notices.notes import NOTE_BYTES, decode_note
from watchdog_train.evidence import from_inside, process_look, redact
from watchdog_train.explain.waits import device_call
from watchdog_train.system import current, proc
from watchdog_train.trusted_files import read_regular

_ARGUMENTS_CAP, _ARGUMENT_CAP = 100, 300
ORDER = {"rank": 0, "worker": 1, "other": 2, "launcher": 3, "keeper": 4}
_KEEP_VARIABLES = re.compile(
    r"(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES|"
    r"TOKENIZERS_PARALLELISM|PYTHON(?:PATH|FAULTHANDLER|UNBUFFERED)|(?:OMP|MKL|OPENBLAS|GLOO|NCCL|"
    r"TORCH|PYTORCH|TORCHELASTIC|CUDA|HF|TRANSFORMERS|WANDB|SLURM|WTRAIN)_\w+)\Z"
)


class Target:
    """Filled in during the collection."""

    def __init__(
        self,
        member: Member,
        now: float,
        reader: process_look.ThreadReader | None,
        end: RankEnd | None = None,
        gpu: GpuUse | None = None,
    ) -> None:
        """`end`: it exited before; it is listed because the others wait for it."""
        self.member, self.end = member, end
        self.first = process_look.look(member.pid, now, reader)
        self.second: process_look.ProcLook | None = None
        self.python: bool | None = None
        self.world_size = 0
        """As its slot has it, 0 where it has none."""
        self.standing = ""
        """See pyspy.standing; empty: no native stack."""
        self.progress: tuple[int, ...] = ()
        self.known = ProcessEvidence(
            pid=member.pid,
            start=member.start,
            ppid=member.ppid,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            gpu=gpu,
        )
        """All but what is computed from the samples; see evidence()."""
        self._judge_first()

    def _judge_first(self) -> None:
        look, why_not = self.first, None
        if self.end is not None:
            self.first, why_not = None, f"it {ending(self.end)}"
            at_unix = round(time.time() - (time.monotonic() - self.end.at), 3)
            self.learn(ended=EndFact(end=self.end, at_unix=at_unix))
        elif look is None:
            why_not = "the process is gone"
        elif self.member.start and look.start != self.member.start:
            self.first, why_not = None, "the process is gone, its pid is another's now"
        elif look.state in ("Z", "X"):
            why_not = "it has died and its parent has not noticed (zombie)"
        self.learn(why_not=why_not)

    def learn(self, **facts: Any) -> None:
        """Set fields of ProcessEvidence."""
        self.known = replace(self.known, **facts)

    def may_be_attached(self) -> bool:
        """Whether a tool may read it now; if not, `why_not` gets the reason.

        In uninterruptible sleep it would make the tool hang, too. Judged by the newest sample: a
        process that has just read from a disk has left that state.
        """
        if self.last is not None and self.last.state == "D":
            self.learn(why_not=in_the_kernel(self.last))
            return False
        return self.known.why_not is None

    def add_why(self, text: str) -> None:
        self.learn(why_not=f"{self.known.why_not or 'no stack'}; {text}")

    def note(self, text: str) -> None:
        if text not in self.known.notes:
            self.learn(notes=(*self.known.notes, text))

    @property
    def pid(self) -> int:
        return self.member.pid

    @property
    def deciding_tid(self) -> int:
        """The thread that reported progress last, else the main one."""
        return self.known.deciding_tid or self.pid

    @property
    def last(self) -> process_look.ProcLook | None:
        return self.second or self.first

    @property
    def state(self) -> str | None:
        """As in /proc; X for one that has exited."""
        if self.end is not None:
            return "X"
        return self.last.state if self.last else None

    @property
    def is_alive(self) -> bool:
        """Whether it can still run, and is not wtrain's keeper."""
        return self.member.role != "keeper" and self.state not in ("Z", "X", None)

    @property
    def uses_gpu(self) -> bool:
        """Whether it has the device of an NVIDIA GPU open."""
        files = proc.open_files(self.pid) or ()
        return any(file.name.startswith("/dev/nvidia") for file in files)

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.first.start if self.first else self.member.start)

    @property
    def was_held(self) -> bool:
        """Stopped or traced before the collection: a blocking dump would fail or wait."""
        return self.first is not None and (self.first.stopped or self.first.traced)

    def look_again(self, now: float, reader: process_look.ThreadReader | None) -> None:
        if self.first is None:
            return
        again = process_look.look(self.pid, now, reader)
        if again is not None and again.start == self.first.start:
            self.second = again
            self.learn(waits_for_input=current().waits_for_input(self.pid))

    def read_facts(self, slot_dir: str | None) -> None:
        """Everything that needs no second sample: from /proc and from its slot."""
        if milestones := read_milestones(slot_dir, self.identity):
            self.learn(milestones=milestones, milestones_at=time.monotonic())
        if self.first is None or self.first.state in ("Z", "X"):
            return
        words = from_inside.slot_words(slot_dir, self.identity)
        if words is not None:
            self.world_size = words[layout.W_WORLD_SIZE]
            self.progress = tuple(words[at] for at in layout.PROGRESS_WORDS)
            if said := words[layout.W_DECIDING]:
                self.learn(deciding_tid=proc.our_thread(self.pid, said))
            handled = words[layout.W_OWN_SIGNALS]
            names = enumerate(layout.USER_SIGNALS)
            self.learn(own_signals=tuple(name for bit, name in names if handled >> bit & 1))
        self.python = process_look.is_python(self.pid)
        variables = proc.parse_environment(proc.read(f"/proc/{self.pid}/environ") or b"")
        redact.learn(variables)
        command = redact.redact_argv(proc.command_line(self.pid) or ())
        kept = [name for name in variables if _KEEP_VARIABLES.match(name)]
        # Reading does not attach, so it is safe in state D; root only.
        kernel_stack = proc.text(f"/proc/{self.pid}/stack", 16384) or None
        self.learn(
            command=tuple(printable(text, _ARGUMENT_CAP) for text in command[:_ARGUMENTS_CAP]),
            environment=redact.redact_environment(variables, kept),
            kernel=_kernel_frames(kernel_stack or ""),
            kernel_stack=kernel_stack,
        )

    def take(self, threads: tuple[ThreadStack, ...], how: How) -> None:
        self.learn(threads=threads, how=how, why_not=None)

    def compare(self, again: tuple[ThreadStack, ...]) -> None:
        """Compare with a second dump: a difference proves life."""
        self.learn(changed=places_at_work(self.known.threads) != places_at_work(again))

    @property
    def wants_native(self) -> bool:
        """Whether Python frames alone do not separate a lock from a wait."""
        look, known = self.last, self.known
        main = known.main
        if look is None or main is None or not main.frames or known.how != "py-spy":
            return False
        share = self.cpu_share()
        idle = look.state == "S" and share is not None and share < 0.02
        spins = known.gpu is not None and (known.gpu.util or 0.0) >= FLAT_UTIL
        if not (idle or spins):
            return False
        if known.role not in ("rank", "worker") or is_idle_worker(known.threads):
            return False
        return not any(frame_matches(wait, main.frames[0]) for wait in WAITS)

    def makes_steps(self, slot_dir: str | None, lately_s: float) -> bool:
        """Whether it has made progress since the first sample, or in the newest seconds."""
        words = from_inside.slot_words(slot_dir, self.identity)
        if words is None:
            return False
        newest = max(words[at] for at in (layout.W_LAST_BEAT_NS, *layout.ARRIVAL_WORDS))
        moved = self.progress != tuple(words[at] for at in layout.PROGRESS_WORDS)
        return moved or time.monotonic_ns() - newest < 1e9 * lately_s

    def others_cpu_s(self) -> float:
        """CPU time so far, without that of a thread that waits for a device."""
        tid = self.deciding_tid
        thread = next((one for one in self.known.threads if one.os_id == tid), None)
        places = [f"{self.pid}/task/{tid}"] if device_call(thread) else []
        texts = (proc.read(f"/proc/{place}/stat") for place in (self.pid, *places))
        stats = [proc.parse_stat(text or b"") for text in texts]
        used, *waits = [stat.cpu_ticks if stat is not None else 0 for stat in stats]
        return (used - sum(waits)) / proc.TICKS_S

    def cpu_share(self) -> float | None:
        """Of one core, between the two samples."""
        both = self.first is not None and self.second is not None
        return process_look.cpu_share(self.first, self.second) if both else None  # type: ignore[arg-type]

    @property
    def sleeps(self) -> bool:
        """Whether its deciding thread slept, which a variable of its function may explain."""
        tid = self.deciding_tid
        facts = self.last.threads if self.last is not None else ()
        return any(fact.tid == tid and isinstance(fact.wait, SleepWait) for fact in facts)

    def sealed(self) -> bool | None:
        """See process_look.sealed; helper threads are recognised by their Python frames."""
        if self.first is None or self.second is None:
            return None
        helpers = frozenset(
            thread.os_id
            for thread in self.known.threads
            if thread.os_id is not None and is_idle_helper(thread)
        )
        return process_look.sealed(self.first, self.second, helpers)

    def evidence(self) -> ProcessEvidence:
        look = self.last
        facts = look.threads if look else ()
        if self.first is not None and self.second is not None:
            facts = process_look.settled(self.first, self.second)
        waits = {fact.tid: fact for fact in facts}
        deciding = waits.get(self.deciding_tid)
        return replace(
            self.known,
            start=self.identity.start,
            ppid=look.ppid if look else self.member.ppid,
            name=self.member.name or (look.name if look else ""),
            state=self.state,
            wchan=look.wchan if look else None,
            thread_waits=waits,
            wait=deciding.wait if deciding else None,
            handles_signals=look.handles_signals if look else None,
            sealed=self.sealed(),
            cpu_share=self.cpu_share(),
            os_threads=look.os_threads if look else None,
        )

    def row(self) -> CapturedProcess:
        known = self.known
        captured = known.how is not None
        return CapturedProcess(
            pid=self.pid,
            start=self.identity.start,
            role=known.role,
            rank=known.rank,
            worker=known.worker,
            state=self.state,
            captured=captured,
            why_not=None if captured else known.why_not or "not reached",
        )


def in_the_kernel(look: process_look.ProcLook) -> str:
    where = f" in {look.wchan}" if look.wchan else ""
    return f"in uninterruptible sleep{where}: a debugger would hang with it"


def with_sources(threads: tuple[ThreadStack, ...], line: Any) -> tuple[ThreadStack, ...]:
    """The same threads with the text of the innermost lines of each; `line(path, number)`."""
    result = []
    for thread in threads:
        frames = list(thread.frames)
        own = len(own_frames(frames))
        for position in [at for at in range(own) if not frames[at].native][:3]:
            frame = frames[position]
            text = line(frame.file, frame.line)
            if text:
                frames[position] = replace(frame, source=text)
        result.append(replace(thread, frames=tuple(frames)))
    return tuple(result)


def read_milestones(slot_dir: str | None, who: ProcessId) -> tuple[Milestone, ...]:
    """The milestones of this very process; empty if it has recorded none."""
    if slot_dir is None:
        return ()
    found = read_regular(os.path.join(slot_dir, f"{who.pid}{layout.NOTE_SUFFIX}"), NOTE_BYTES + 1)
    note = decode_note(found[0], who.pid) if found is not None else None
    return note.milestones if note is not None and note.start in (0, who.start) else ()


_KERNEL_FRAME = re.compile(
    r"\s*(?:\[<[0-9a-fA-F]{1,16}>\]\s+|\?\s+)?(?P<name>[A-Za-z_][\w.]{2,100})\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?"
    r"(?: \[(?P<module>\w{1,40})\])?\s*\Z"
)


def _kernel_frames(text: str) -> tuple[str, ...]:
    """All frames of /proc/PID/stack, innermost first, as `nfs_wait_bit_killable [nfs]`."""
    found = (_KERNEL_FRAME.match(line) for line in text.splitlines()[:64])
    return tuple(
        f"{match['name']} [{match['module']}]" if match["module"] else match["name"]
        for match in found
        if match is not None
    )
