"""An explanation in sentences, the only place that renders one. Pure.

Who does what, on what, since when and where; who waits for it; the cause if it is known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from watchdog_train.core.diagnosis.stacks import both_ends
from watchdog_train.core.model import CrashFact, ExceptionFact, FullDisk, signal_name
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.exceptions import CodePlace, ExceptionCause
from watchdog_train.core.model.gpu import FLAT_UTIL, IDLE_POWER_SHARE, GpuUse
from watchdog_train.report import words
from watchdog_train.report.words import clean, duration, listed

_SHOWN = 3
_PATH_CAP = 160
_MESSAGE_CAP = 300
_CAUSE_CAP = 800
_OWN_CRASH = (4, 6, 7, 8, 11)
_CALLS = {"open": "opening", "read": "reading", "write": "writing", "sync": "flushing"}


def remedy_line(remedy: x.Remedy, texts: Mapping[str, str]) -> str:
    """`num-workers-0 (seen: dataloader): loads data in the main process`."""
    seen = "" if remedy.ground == "named" else f" (seen: {remedy.ground.replace('-', ' ')})"
    text = texts.get(remedy.name)
    return f"{remedy.name}{seen}{f': {text}' if text else ''}"


def sentences(found: x.Explanation) -> tuple[str, ...]:
    """Everything, a line each: what happened, who waits for it, the cause, what is unknown."""
    cause = because(found)
    why = (f"Cause: {cause}",) if cause else ()
    return (what_happened(found), *more_sentences(found), *why)


def more_sentences(found: x.Explanation) -> tuple[str, ...]:
    """The other roots or the members of a deadlock, the waiting processes, what is unknown."""
    return (*_threads(found), *_others(found), *victim_sentences(found), *_unknown(found))


def _others(found: x.Explanation) -> Iterable[str]:
    for number, one in enumerate((found.knot or found.also)[:_SHOWN]):
        alike = found.alike if found.root is None and number == 0 else ()
        yield _sentence(names_words((one.who, *alike)), one, several=bool(alike))


def what_happened(found: x.Explanation) -> str:
    if found.knot:
        members = list(dict.fromkeys(one.who for one in found.knot))
        names = names_words(members)
        if len(members) == 1:
            names = f"{len(found.knot)} threads of {names}"
        return f"{names} wait for each other and nobody else can end it: a deadlock."
    if found.root is None and found.also:
        return "Every rank that was seen waits for other ranks; which one is missing is unknown."
    if found.root is None and found.kind == "crash":
        return "The training ended; which process failed first is unknown."
    if found.root is None:
        return "Nothing in the evidence tells who stands still."
    who = names_words((found.root.who, *found.alike))
    return _sentence(who, found.through or found.root, several=bool(found.alike))


def because(found: x.Explanation) -> str:
    """The cause and its certainty, without a per cent; empty if unknown."""
    cause, died = found.because, found.died
    if cause is None and died is not None and not (found.root and found.root.died):
        return f"{crash_words(CrashFact(exception=died, rank=died.rank, stays=True))} (likely)"
    if cause is None:
        return ""
    values = {name: clean(value, _MESSAGE_CAP) for name, value in cause.values.items()}
    values |= {"who": who_words(cause.who)} if cause.who is not None else {}
    text = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), cause.template)
    link = f" Known issue: {clean(cause.link, _PATH_CAP)}" if cause.link else ""
    told = clean(text, _CAUSE_CAP)
    return f"{clean(cause.family, 60)} ({cause.certainty}). {told}{link}".rstrip()


def cause_words(found: x.Explanation) -> str:
    """The cause, or that it is unknown; nothing if the observation is the full answer."""
    return because(found) or ("" if found.is_complete else "cause unknown")


def who_words(who: x.Who) -> str:
    """`rank 0 (pid 4242)`, `rank 0's worker 1 (pid 4250)`, `the launcher (pid 12)`."""
    if who.role == "rank":
        name = "the training" if who.rank is None else f"rank {who.rank}"
    elif who.role == "worker":
        number = "a worker" if who.worker is None else f"worker {who.worker}"
        name = number if who.rank is None else f"rank {who.rank}'s {number.removeprefix('a ')}"
    elif who.role == "launcher":
        name = clean(who.name, 60) or "the launcher"
    else:
        name = clean(who.name, 60) or "a process"
        name += "" if who.rank is None else f" of rank {who.rank}"
    host = f" on {clean(who.host, 60)}" if who.host else ""
    return f"{name} (pid {who.pid}{host})" if who.pid is not None else name + host


def _sentence(who: str, root: x.Standstill, *, several: bool = False) -> str:
    where = place_words(root)
    match root.doing:
        case x.End() as end:
            return f"{end_words(who, end, where, root.step)}{'' if end.raised else '.'}"
        case w.Stopped():
            have = "was" if root.since_s is None else "have been" if several else "has been"
            how, to = held_words(root.doing, (root.who.pid,))
            return f"{who} {have} {how}{_since(root)}. {to}"
        case w.Ended():
            return f"{who} has exited, and its parent has not asked for its exit status."
        case w.DeviceWait(path=""):
            return _device(who, root, root.doing, several=several)
    verb, more = doing_words(root.doing, root.who.pid, silent_s=root.since_s)
    if root.since_s is not None:
        have = "have" if several else "has"
        text = f"{who} {have} been {verb}{_since(root)}{where}."
    else:
        text = f"{who} {'are' if several else 'is'} {verb}{where}."
    command = ""
    if root.command:
        command = f" Its command is `{clean(words.command_text(root.command), _PATH_CAP)}`."
    thread = f" This is its thread {clean(root.thread, 60)}." if root.thread else ""
    if root.died is not None:
        name = clean(root.died.thread, 60) or "without a name"
        thread += f" Nobody else can end this wait: its thread {name} ended with "
        thread += f"{_raised(msgspec.structs.replace(root.died, thread=''), '')}."
    return f"{text}{f' {more}' if more else ''}{thread}{command}"


def held_words(held: w.Stopped, pids: Iterable[int | None]) -> tuple[str, str]:
    if held.freezer:
        place, _, name = clean(held.freezer, _PATH_CAP).rpartition("/")
        value = "THAWED" if name == "freezer.state" else "0"
        thaw = f"echo {value} > {shlex.quote(clean(held.freezer, _PATH_CAP))}"
        return f"frozen by the cgroup {place}", f"To thaw it: {thaw}"
    if held.traced:
        by = held.debugger
        named = f"the debugger {clean(by.name, 60) or '?'} (pid {by.pid})" if by else "a debugger"
        return f"held by {named}", "It continues when the debugger releases it."
    told = " ".join(str(pid) for pid in pids if pid is not None)
    to = f"To continue it: kill -CONT {told}" if told else ""
    return "stopped by a signal from outside wtrain", to


def _since(root: x.Standstill) -> str:
    return f" for {duration(root.since_s)}" if root.since_s is not None else ""


def place_words(root: x.Standstill) -> str:
    """` in torch.save (train.py:257)`: the library's function, and the user's own line."""
    place = _place(root)
    return f" in {place}" if place else ""


def _place(root: x.Standstill) -> str:
    own, at = root.own, root.at
    line = own or at
    if line is None:
        return ""
    where = f"{clean(line.file, _PATH_CAP)}{f':{line.line}' if line.line else ''}"
    asking = isinstance(root.doing, x.Computing) and root.doing.asks is not None
    if own is not None and at is not None and not asking and not at.file.startswith("<"):
        package = at.file.partition("/")[0].removesuffix(".py")
        private = at.function.startswith("_") and not at.function.startswith("__")
        name = package if private else f"{package}.{at.function}"
        return f"{clean(name, 120)} ({where})"
    return f"{clean(line.function, 120)} ({where})"


def crash_words(crash: CrashFact, step: int | None = None) -> str:
    """`rank 1 raised ValueError at train.py:42, step 310: bad`; `step`: if the crash has none."""
    who = who_words(x.Who(pid=None, role="rank", rank=crash.rank))
    raised = crash.exception
    if crash.in_thread and raised is not None:
        who = f"thread {clean(raised.thread, 60)} of {who}"
        raised = msgspec.structs.replace(raised, thread="")
    elif crash.stays:
        who += ", which did not exit,"
    end = x.End(
        code=crash.code, signal=crash.signal, sender=crash.sender or "unknown", raised=raised
    )
    said = ""
    if crash.said and crash.signal is None:
        said = f": {clean(both_ends(crash.said, _MESSAGE_CAP))}"
    at = step if crash.step is None else crash.step
    return f"{_before(crash)}{end_words(who, end, '', at)}{'' if crash.exception else said}"


def _before(crash: CrashFact) -> str:
    """The failures that led to it, as the beginning of its sentence."""
    told = ""
    if crash.disk is not None:
        told = f"{disk_words(crash.disk)}; "
    if crash.first is not None:
        gone = crash.vanished
        pid = f"pid {crash.first.pid} raised " if crash.first.pid is not None else "first "
        if gone is not None and gone.script and gone.helper is not None:
            of = f" of rank {crash.rank}" if gone.helper.ppid == crash.pid else ""
            name = clean(gone.script.rpartition("/")[2], 60)
            pid = f"{name} (helper{of}, pid {gone.pid}) raised "
        told += f"{pid}{_raised(crash.first, '')}; then "
    elif crash.vanished is not None and crash.vanished.helper is not None:
        by = crash.vanished.helper
        who = x.Who(pid=by.pid, role=by.role, rank=by.rank, worker=by.worker, name=by.name)
        end = x.End(signal=crash.vanished.signal, sender="unknown")
        told += f"{end_words(who_words(who), end, '', None)}; then "
    return told


def disk_words(disk: FullDisk) -> str:
    """`no space left for /ckpt/step-100.pt: 0 B free, the save before needed 517 KiB`."""
    what = {"bytes": "the disk is full", "inodes": "no inodes left", "quota": "quota exceeded"}
    free = f", {words.size_text(disk.free_bytes)} free" if disk.free_bytes is not None else ""
    need = f", the save before took {words.size_text(disk.need_bytes)}" if disk.need_bytes else ""
    return f"{what[disk.lacks]} at {clean(disk.path, 300)}{free}{need}"


def end_words(who: str, end: x.End, where: str, at: int | None) -> str:
    """How a process ended, the exception first; without a full stop."""
    number = f"step {words.number(at)}" if at is not None else ""
    step = f" at {number}" if number else ""
    if end.raised is not None:
        stays = end.stays_in
        now = f", now in {clean(stays.function, 60)} ({file_line(stays)})," if stays else ""
        return f"{who}{now} raised {_raised(end.raised, number)}"
    if end.signal is not None:
        name = signal_name(end.signal)
        if end.signal in _OWN_CRASH:
            return f"{who} crashed with {name}{step}{where}"
        by = {
            "wtrain": f"by wtrain, with {name}",
            "member": f"by {name} from another process of the training",
            "oom-killer": "by the kernel's OOM killer",
            "outside": f"by {name} from outside wtrain",
            "unknown": f"by {name}, which wtrain did not send",
        }[end.sender]
        return f"{who} was killed {by}{step}"
    if end.code is not None:
        return f"{who} exited with code {end.code}{step}"
    if end.unnoticed:
        return f"{who} has exited, and its parent has not asked for its exit status"
    return f"{who} has exited{step}; how is unknown"


def _raised(raised: ExceptionFact, step: str) -> str:
    """`RuntimeError at train.py:6 in DataLoader worker 1, step 9: bad; after KeyError: 'a'`."""
    place = raised.place
    at = f" at {file_line(place)}" if place else ""
    at += f" in DataLoader worker {raised.worker}" if raised.worker is not None else ""
    at += f" in thread {clean(raised.thread, 60)}" if raised.thread else ""
    at += f", {step}" if step else ""
    first = raised.chain[0] if raised.chain else None
    after = f"; after {_told(first)}" if first is not None else ""
    return f"{_told(raised, at)}{after}"


def file_line(place: CodePlace | x.Place) -> str:
    file = place.file.replace("\\", "/").rpartition("/")[2]
    return f"{clean(file, 120)}:{place.line}"


def _told(raised: ExceptionFact | ExceptionCause, at: str = "") -> str:
    message = clean(both_ends(raised.message, _MESSAGE_CAP))
    return f"{clean(raised.type, 120)}{at}{f': {message}' if message else ''}"


def doing_words(  # noqa: PLR0912, PLR0915 - one case for each kind of wait
    doing: x.Doing, pid: int | None = None, *, silent_s: float | None = None
) -> tuple[str, str]:
    """What it is doing (`opening out/ckpt.pt`), and a sentence more about the object.

    Args:
        doing: of a process.
        pid: of that process, which may itself hold the other end.
        silent_s: seconds without progress: a shorter sleep is repeated.
    """
    match doing:
        case w.FileWait():
            return _file(doing)
        case w.FileLockWait(path=path, holders=holders):
            lock = clean(path, _PATH_CAP) if path else "a file"
            held = f"Held by {refs_words(holders, pid)}." if holders else ""
            return f"waiting for the lock on {lock}", held or "Its holder is unknown."
        case w.PipeWait(listens=True) | w.TcpWait(call="accept"):
            at = doing.address if isinstance(doing, w.TcpWait) else doing.path
            return f"waiting for connections{f' at {clean(at, _PATH_CAP)}' if at else ''}", ""
        case w.PipeWait():
            verb = "reading from" if doing.call == "read" else "writing to"
            verb += _stream(doing)
            if doing.others:
                return f"{verb} a pipe or socket of {refs_words(doing.others, pid)}", ""
            nobody = "No process has its other end open." if doing.complete else ""
            return f"{verb} a pipe or socket", nobody
        case w.TcpWait():
            verbs = {"connect": "connecting to", "write": "sending to"}
            verb = verbs.get(doing.call, "waiting for an answer from")
            here = f"That is {refs_words(doing.others, pid)}." if doing.others else ""
            what = clean(doing.address, _PATH_CAP) or "a server"
            return f"{verb} {what}", here
        case w.ChildWait(children=children):
            child = f"its child {refs_words(children)}" if children else "a child process"
            return f"waiting for {child}", ""
        case w.MutexWait(owner_lives=False):
            held = "It was held at the fork by a thread that this process does not have."
            return "waiting for a lock that nobody can release", held
        case w.MutexWait(owner_tid=owner):
            held = f"Held by its own thread {owner}." if owner is not None else ""
            return "waiting for a lock inside the process", held
        case w.SharedSemaphoreWait(others=others):
            shared = f" shared with {refs_words(others)}" if others else ""
            return f"waiting for a semaphore{shared}", ""
        case w.SleepWait():
            return _sleep(doing, silent_s)
        case w.PollWait(waits=inner):
            known = "; ".join(doing_words(one)[0] for one in inner[:_SHOWN])
            return f"waiting for the first of several: {known}" if known else "waiting in poll", ""
        case w.TerminalWait(others=others) if others:
            end = "That process holds the other end of its standard input."
            return f"waiting for input from {refs_words(others, pid)}", end
        case w.TerminalWait(stream=1 | 2):
            return f"writing to{_stream(doing)} a terminal", "Ctrl-Q continues a stopped terminal."
        case w.TerminalWait():
            advice = "Set the answer in advance for a run without one."
            return "waiting for a person to type", advice
        case w.DeviceWait(path=path):
            return f"waiting for {clean(path, _PATH_CAP) or 'its GPU'}", ""
        case w.DiskWait():
            where = clean(doing.path, _PATH_CAP) if doing.path else "a disk or driver"
            on = f" on {clean(doing.network, 40)}" if doing.network else ""
            kernel = f" (in {clean(doing.function, 60)})" if doing.function else ""
            return f"waiting inside the kernel for {where}{on}{kernel}", "No signal can reach it."
        case x.CollectiveWait():
            return _collective(doing)
        case x.StoreWait(absent=absent):
            missing = f"Not there: {words.spans_text(absent)}." if absent else ""
            return "waiting for the other ranks to appear", missing
        case x.BatchWait(workers=workers):
            of = f" of {listed([who_words(one) for one in workers], _SHOWN)}" if workers else ""
            return f"waiting for a batch{of}", ""
        case x.JoinWait(name=name):
            return f"waiting for {f'its thread {clean(name, 60)}' if name else 'a thread'}", ""
        case x.PythonLockWait():
            return _python_lock(doing)
        case x.QueueWait(call=call):
            full = "putting into a full queue" if call == "put" else "waiting for a queue"
            return full + (" between processes" if doing.between_processes else ""), ""
        case x.GilWait(owner=owner):
            held = f"Its thread {clean(owner, 60)} holds it." if owner else ""
            return "waiting for the interpreter lock", held
        case x.ImportWait():
            return "waiting for a module that another thread is importing", ""
        case x.LoopWait():
            nothing = "The loop has no timer, connection, child or other thread that could wake it."
            return "waiting in its event loop", nothing
        case x.Computing(asks=x.Place() as loop):
            return f"polling in a loop at line {loop.line}", ""
        case x.Computing(cpu_share=share):
            return f"computing{f', at {share:.0%} of a core' if share is not None else ''}", ""
        case w.Running():
            return "running", ""
        case w.UnknownWait(why="refused"):
            return "standing still", "What it waits for could not be read."
    return "standing still", ""


def _device(who: str, root: x.Standstill, wait: w.DeviceWait, *, several: bool) -> str:
    """`ranks 0-3 wait for their GPUs in cudaStreamSynchronize, called by loss.item() (a.py:8)`."""
    line = place_words(root)
    if wait.call:
        by = f"{clean(wait.by, 120)}{_line(root.own)}" if wait.by else _place(root)
        line = f" in {clean(wait.call, 120)}, called by {by}"
    since = f", for {duration(root.since_s)}" if root.since_s is not None else ""
    whose = "wait for their GPUs" if several else "waits for its GPU"
    return f"{who} {whose}{line}{since}{_shown(wait.gpu, several=several)}."


def _shown(gpu: GpuUse | None, *, several: bool) -> str:
    """`; the GPU is at 100 % and 18 % of its power limit: it runs a kernel that only waits`."""
    if gpu is None or gpu.util is None:
        return ""
    are, they, its = ("GPUs are", "they run", "their") if several else ("GPU is", "it runs", "its")
    text = f"; the {are} at {gpu.util:.0f} %"
    if gpu.power is not None:
        text += f" and {100 * gpu.power:.0f} % of {its} power limit"
        if gpu.util >= FLAT_UTIL and gpu.power < IDLE_POWER_SHARE:
            text += f": {they} a kernel that only waits"
            text += ", usually a collective that a rank has not entered" if several else ""
    others = [clean(one, _PATH_CAP) for one in gpu.other_names]
    return f"{text}; shared with {listed(others, _SHOWN)}" if others else text


def _stream(wait: w.Wait) -> str:
    """` its standard error (descriptor 2),`."""
    names = {0: "input", 1: "output", 2: "error"}
    if wait.stream not in names:
        return ""
    return f" its standard {names[wait.stream]} (descriptor {wait.stream}),"


def _file(wait: w.FileWait) -> tuple[str, str]:
    name = clean(wait.path, _PATH_CAP) if wait.path else "a file"
    verb = _CALLS.get(wait.call, "waiting for") + _stream(wait)
    on = f"It is on {clean(wait.network, 40)}." if wait.network else ""
    if wait.kind != "fifo":
        return f"{verb} {name}", on
    if wait.others:
        return f"{verb} {name}", f"It is a FIFO of {refs_words(wait.others)}."
    other = "writes" if wait.call == "read" else "reads" if wait.call == "write" else "has open"
    nobody = f"It is a FIFO that no other process {other}." if wait.complete else "It is a FIFO."
    return f"{verb} {name}", nobody


def _sleep(wait: w.SleepWait, silent_s: float | None) -> tuple[str, str]:
    held = ""
    if wait.polls is not None:
        name, value = wait.polls
        held = f'Its variable {clean(name, 60)} is "{clean(value, _PATH_CAP)}".'
    left = wait.left_s
    shorter = left is not None and silent_s is not None and silent_s > 2 * left
    if wait.repeats or (shorter and not wait.exact):
        return "sleeping again and again", f"It polls. {held or 'What it polls is unknown.'}"
    most = f"The sleep ends in at most {duration(left)}." if left is not None else ""
    return "sleeping", f"{most} {held}".strip()


def _python_lock(wait: x.PythonLockWait) -> tuple[str, str]:
    could = {"event": "set it", "condition": "notify it", "barrier": "come to it"}
    end = could.get(wait.kind, "release it")
    article = "an" if wait.kind == "event" else "a"
    if wait.sealed:
        told = f"No thread is left that could {end}."
        return f"waiting for {article} {wait.kind} inside the process", told
    told = f"Python does not record who could {end}."
    if wait.native_threads:
        names = [clean(name, 40) for name in wait.native_threads]
        told += f" A native thread could: {listed(names, _SHOWN)}."
    if wait.signals:
        told += f" Its own handler of {listed(wait.signals)} could."
    return f"waiting for a Python {wait.kind}", told


def _collective(wait: x.CollectiveWait) -> tuple[str, str]:
    if wait.mismatched:
        return _in(wait), f"In another operation: {words.spans_text(wait.mismatched)}."
    return _in(wait), f"Not in it: {words.spans_text(wait.absent)}." if wait.absent else ""


def _in(wait: x.CollectiveWait) -> str:
    """`in allreduce number 156 of DDP's gradients, inside backward()`."""
    number = f" number {wait.seq}" if wait.seq is not None else ""
    text = f"in {clean(wait.op, 60) if wait.op else 'collective' if number else 'a collective'}"
    of = {"ddp": " of DDP's gradients, inside backward()", "backward": ", inside backward()"}
    return f"{text}{number}{of[wait.inside] if wait.inside else ''}"


def refs_words(refs: Sequence[w.ProcessRef], own: int | None = None) -> str:
    """`sleep (pid 12)`; the process itself is called so."""
    names = [f"{clean(ref.name, 60) or 'a process'} (pid {ref.pid})" for ref in refs]
    if own is not None:
        both = zip(names, refs, strict=True)
        names = ["the process itself" if ref.pid == own else name for name, ref in both]
    return listed(names, _SHOWN)


def _threads(found: x.Explanation) -> Iterable[str]:
    """What the thread does that the deciding one waits for; with several, which one is unknown."""
    root = found.root
    if found.through is not None and root is not None:
        name = _thread(root)
        known = isinstance(found.through.doing, (x.JoinWait, x.GilWait))
        which = f"Its thread {name}" if known else f"Its only other thread at work, {name},"
        yield _sentence(which, msgspec.structs.replace(root, thread=None))
    groups: dict[tuple[x.Place | None, str], list[x.Standstill]] = {}
    for one in found.threads:
        groups.setdefault((one.own, doing_words(one.doing)[0]), []).append(one)
    for members in list(groups.values())[:_SHOWN]:
        names = list(dict.fromkeys(map(_thread, members)))
        whose = names_words(list(dict.fromkeys(one.who for one in members)), pid=False)
        which = f"{'Thread' if len(names) == 1 else 'Threads'} {listed(names, _SHOWN)} of {whose}"
        one = msgspec.structs.replace(members[0], thread=None)
        yield _sentence(which, one, several=len(names) > 1)


def _thread(one: x.Standstill) -> str:
    return clean(one.thread or "without a name", 60)


def victim_sentences(found: x.Explanation) -> Sequence[str]:
    """One line for everybody who waits for the same, the ranks first."""
    groups: dict[tuple[str, str | None, x.Place | None], list[x.Who]] = {}
    for victim in found.victims:
        verb = _victim_words(victim.how)
        whom = names_words(victim.waits_for)
        groups.setdefault((whom, verb, victim.own if verb else None), []).append(victim.who)
    lines = []
    for (whom, verb, own), members in list(groups.items())[:_SHOWN]:
        who = names_words(members, pid=False)
        wait = "waits" if len(members) == 1 else "wait"
        waits = f"{who} {wait} for {whom}{verb}{_line(own)}."
        lines.append(waits if verb else f"{who} exited after {whom}.")
    return lines


def _line(place: x.Place | None) -> str:
    """` (train.py:257)`."""
    if place is None:
        return ""
    return f" ({clean(place.file, _PATH_CAP)}{f':{place.line}' if place.line else ''})"


def names_words(members: Sequence[x.Who], *, pid: bool = True, most: int = _SHOWN) -> str:
    """`rank 1 (pid 12)`, `ranks 1-30`, `rank 0's worker 1 (pid 14) and 3 more`."""
    ranks = [one.rank for one in members if one.role == "rank" and one.rank is not None]
    if len(ranks) == len(members) and (len(ranks) > 1 or not pid):
        return words.ranks_text(ranks)
    return listed([who_words(one) for one in members], most)


_VICTIMS: dict[type[x.Doing], str] = {
    x.StoreWait: " to appear",
    x.BatchWait: " to bring a batch",
    w.ChildWait: " to exit",
    w.PipeWait: " at the other end of a pipe or socket",
    x.QueueWait: " at the other end of a queue",
    x.GilWait: " to release a lock",
    w.MutexWait: " to release a lock",
    x.PythonLockWait: " to release a lock",
}


def _victim_words(doing: x.Doing) -> str | None:
    """How it waits for another process: ` in all_reduce`; None: it has exited too."""
    match doing:
        case x.End():
            return None
        case x.CollectiveWait():
            return f" {_in(doing)}"
        case w.DeviceWait(call=call) if call:
            return f" in {clean(call, 120)}"
        case w.FileLockWait(path=path):
            return f" to release the lock on {clean(path, _PATH_CAP) if path else 'a file'}"
    return _VICTIMS.get(type(doing)) or f", {doing_words(doing)[0]}"


def _unknown(found: x.Explanation) -> Iterable[str]:
    by_kind: dict[str, list[x.Who]] = {}
    for one in found.unknown:
        if one.what == "ranks":
            yield f"Nothing was seen of {words.spans_text(one.ranks)}."
        elif one.who is not None:
            by_kind.setdefault(one.what, []).append(one.who)
    texts = {
        "stack": "No stack could be taken of {}.",
        "holder": "Who holds what {} waits for is unknown.",
        "other-end": "Who could end the wait of {} is unknown.",
        "wait": "What {} waits for is unknown.",
    }
    for what, members in by_kind.items():
        if what in texts:
            yield texts[what].format(listed([who_words(one) for one in members], _SHOWN))
