"""Stacks as plain values: frames, threads that wait in every healthy run, groups, fingerprint.

Knows no tool and no process: collectors parse their output into these values. It never judges.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from watchdog_train.core.model import Role, Value

FRAMES_CAP = 400
"""Frames kept of one thread: a runaway recursion has thousands, its ends tell the story."""
THREADS_CAP = 512
NAME_CAP = 200
"""Characters kept of a function, a file or a thread name."""


class Frame(Value, frozen=True, kw_only=True):
    """One frame, Python or native."""

    function: str
    """As the tool names it, class included where it knows it: `Queue.get`."""
    file: str
    line: int
    native: bool = False
    source: str | None = None
    """Text of the line, where it could be read; untrusted."""

    @property
    def name(self) -> str:
        """The function alone: tools and Python versions differ in whether they name the class."""
        return plain_name(self.function)

    @property
    def short(self) -> str:
        """The file from its package on."""
        return short_file(self.file)

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.short}:{self.line})"
            if self.line
            else f"{self.name} ({self.short})"
        )


class ThreadStack(Value, frozen=True, kw_only=True):
    """The stack of one thread, innermost frame first."""

    frames: tuple[Frame, ...]
    name: str | None = None
    os_id: int | None = None
    main: bool = False
    active: bool | None = None
    owns_gil: bool = False


class Group(Value, frozen=True, kw_only=True):
    """Processes whose deciding threads are at the same place."""

    labels: tuple[str, ...]
    pids: tuple[int, ...]
    role: Role
    frames: tuple[Frame, ...]
    idle: bool


def printable(text: str, cap: int = NAME_CAP) -> str:
    """Names come from the training: nothing in them may reach a terminal as a command."""
    text = text[-cap:]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


_COMPILED_APART = re.compile(r"(?:\.(?:part|isra|constprop|cold|lto_priv|llvm)(?:\.\d+)?)+\Z")


@lru_cache(maxsize=8192)
def plain_name(function: str) -> str:
    """`Queue.get` and `DS.fetch.<locals>.<listcomp>` without their qualification.

    Of native names without what compilers and linkers append: `wait@@GLIBC_2.3`, `f.part.0`.
    """
    function = _COMPILED_APART.sub("", function.partition("@")[0] or function)
    return function.rpartition(".")[2] or function


EITHER = " || "
_ROOTS = re.compile(
    r"(?:.*/)?(?:site-packages|dist-packages|lib(?:32|64)?/python\d(?:\.\d+)?t?|python\d+\.zip|[Ll]ib)/"
)


@lru_cache(maxsize=8192)
def short_file(file: str) -> str:
    """A file from its package on; of other files the name alone: directories differ by machine."""
    file = file.replace("\\", "/")
    match = _ROOTS.match(file)
    if match:
        return file[match.end() :]
    _, ours, rest = file.rpartition("/watchdog_train/")
    if ours:  # our client runs from wherever it is installed, an editable checkout included
        return f"watchdog_train/{rest}"
    if file.startswith("/") or file[1:3] == ":/":
        return file.rpartition("/")[2] or file
    return file


class _Wanted(Value, frozen=True, kw_only=True):
    """A pattern, compiled."""

    function: re.Pattern[str]
    file: re.Pattern[str] | None
    bare: re.Pattern[str] | None
    """For dumps that name files without any directory."""


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> _Wanted:
    function, _, file = pattern.partition(" (")
    file = file.strip().removesuffix(")")
    bases = [part.strip().rpartition("/")[2] for part in file.split("|")]
    plain = [base for base in bases if base and "*" not in base]
    return _Wanted(
        function=_alternatives(function, ""),
        file=_alternatives(file, r"(?:.*/)?") if file else None,
        bare=_alternatives("|".join(plain), "") if plain else None,
    )


def _alternatives(text: str, prefix: str) -> re.Pattern[str]:
    parts = (re.escape(part.strip()).replace(r"\*", ".*") for part in text.split("|"))
    return re.compile(rf"{prefix}(?:{'|'.join(parts)})\Z", re.DOTALL)


@lru_cache(maxsize=65536)
def _matches(pattern: str, name: str, function: str, file: str) -> bool:
    if EITHER in pattern:
        return any(_matches(each, name, function, file) for each in pattern.split(EITHER))
    wanted = _compiled(pattern)
    if wanted.function.match(name) is None and wanted.function.match(function) is None:
        return False
    if wanted.file is None or wanted.file.match(short_file(file)) is not None:
        return True
    has_folder = "/" in file or "\\" in file
    return not has_folder and wanted.bare is not None and wanted.bare.match(file) is not None


def frame_matches(pattern: str, frame: Frame) -> bool:
    """Whether a frame fits `function`, `function (file)`, with `|` for or and `*` for anything.

    ` || ` between several such patterns: one of them.
    """
    return _matches(pattern, frame.name, frame.function, frame.file)


def find_chain(chain: Sequence[str], frames: Sequence[Frame]) -> bool:
    """Whether the patterns occur in this order, outermost first, gaps allowed."""
    wanted = iter(chain)
    pattern = next(wanted, None)
    for frame in reversed(frames):
        if pattern is None:
            return True
        if frame_matches(pattern, frame):
            pattern = next(wanted, None)
    return pattern is None


WAITS = (
    "wait|wait_for|acquire|__enter__|join|_wait_for_tstate_lock|_acquire_restore (threading.py)",
    "select|_select|poll (selectors.py)",
    "wait|poll|_poll (multiprocessing/connection.py)",
    "recv|_recv|_recv_bytes|recv_bytes|_exhaustive_wait (multiprocessing/connection.py)",
    "get|put|join (queue.py|multiprocessing/queues.py)",
    "poll|wait (multiprocessing/popen_fork.py|multiprocessing/popen_spawn_posix.py)",
    "join (multiprocessing/process.py)",
    "wait|_wait|_try_wait (subprocess.py)",
    "acquire|__enter__ (multiprocessing/synchronize.py)",
    "run_once|_run_once|select (asyncio/*)",
    "result (concurrent/futures/_base.py)",
)
"""Frames that only say "waits"; what it waits for is the caller's."""

_HELPERS: tuple[tuple[str, ...], ...] = (
    ("run (tqdm/_monitor.py)",),
    ("_feed (multiprocessing/queues.py)", "wait (threading.py)"),
    ("_pin_memory_loop", "select|poll|wait|_poll|get|do_one_step"),
    ("_worker (concurrent/futures/thread.py)",),
    ("run_forever|_run_once (asyncio/base_events.py)", "select (selectors.py)"),
    ("_read_thread|_recv_msg (torch/_inductor/compile_worker/*)",),
    ("_serve (multiprocessing/resource_sharer.py)", "accept|select|_accept"),
    ("_handle_workers|_handle_tasks|_handle_results (multiprocessing/pool.py)",),
    ("serve_forever (socketserver.py)", "select (selectors.py)"),
    ("*heartbeat*|*_gc_loop|*garbage_collect*|*keep_alive*|*keepalive*", "wait|sleep|select|get"),
    ("run|_run (tensorboard/*|torch/utils/tensorboard/*)",),
    (
        "_loop_check_status|check_*|_thread_body|_run_job|*_loop (wandb/*)",
        "wait|get|select|acquire",
    ),
    ("* (watchdog_train/client/*)",),
    ("* (*pydevd*|*debugpy*)",),
)


def is_idle_helper(thread: ThreadStack) -> bool:
    """Whether this thread waits like this in every healthy run; never true of a main thread."""
    if thread.main:
        return False
    if not thread.frames:
        return True
    top = thread.frames[0]
    for chain in _HELPERS:
        if len(chain) == 1 and chain[0].startswith("_worker "):
            if frame_matches(chain[0], top):
                return True
        elif find_chain(chain, thread.frames):
            return True
    return False


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of this process: a forked child still shows the parent's below its start."""
    for position, frame in enumerate(frames):
        if frame_matches("_bootstrap (multiprocessing/process.py|multiprocess/process.py)", frame):
            return tuple(frames[: position + 1])
    return tuple(frames)


def is_forked(frames: Sequence[Frame]) -> bool | None:
    """Whether the process was started by fork; None when its stack does not tell."""
    for frame in frames:
        if frame_matches("spawn_main (*multiprocess*/spawn.py)", frame):
            return False
        if frame_matches("_launch (multiprocess*/popen_fork.py)", frame):
            return True
    return None


def trimmed(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Without native frames and without the pure waits at the top."""
    python = [frame for frame in frames if not frame.native]
    start = 0
    while start < len(python) - 1 and any(frame_matches(wait, python[start]) for wait in WAITS):
        start += 1
    return tuple(python[start:]) or tuple(frames)


def deciding_frame(frames: Sequence[Frame]) -> Frame | None:
    """The frame to show a person: what waits, not the wait itself."""
    rest = trimmed(own_frames(frames))
    return rest[0] if rest else None


def busiest_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The main thread, else the first that is no idle helper."""
    working = [thread for thread in threads if thread.frames and not is_idle_helper(thread)]
    return next((thread for thread in working if thread.main), working[0] if working else None)


def is_idle_worker(threads: Sequence[ThreadStack]) -> bool:
    """Whether this is a loader worker that waits for its parent's next order."""
    for thread in threads:
        frames = [frame for frame in own_frames(thread.frames) if not frame.native]
        for position, frame in enumerate(frames):
            if frame_matches("_worker_loop (torch/utils/data/_utils/worker.py)", frame):
                above = frames[:position]
                return bool(above) and frame_matches("get (multiprocessing/queues.py)", above[-1])
    return False


def place(frames: Sequence[Frame], depth: int = 12) -> tuple[str, ...]:
    """A stack without what changes between two attempts: no pids, addresses or line numbers."""
    return tuple(
        f"{frame.name} ({frame.short})"
        for frame in trimmed(own_frames(frames))[:depth]
        if not frame.name.startswith("0x")
    )


def fingerprint(family: str | None, places: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """The same for the same hang in two attempts: the family and the set of (role, place)."""
    text = "\n".join(sorted({f"{role}: {' < '.join(frames)}" for role, frames in places}))
    return hashlib.sha256(f"{family}\n{text}".encode()).hexdigest()[:16]


def group(processes: Iterable[tuple[str, int, Role, Sequence[ThreadStack]]]) -> tuple[Group, ...]:
    """Processes (label, pid, role, threads) at the same place together; the smallest group first.

    Idle workers go last whatever their number: they wait for the others.
    """
    found: dict[tuple[Role, tuple[str, ...]], list[tuple[str, int, ThreadStack, bool]]] = {}
    for label, pid, role, threads in processes:
        thread = busiest_thread(threads)
        if thread is None:
            continue
        entry = (label, pid, thread, role == "worker" and is_idle_worker(threads))
        found.setdefault((role, place(thread.frames)), []).append(entry)
    groups = [
        Group(
            labels=tuple(entry[0] for entry in entries),
            pids=tuple(entry[1] for entry in entries),
            role=role,
            frames=own_frames(entries[0][2].frames),
            idle=all(entry[3] for entry in entries),
        )
        for (role, _), entries in found.items()
    ]
    order: dict[Role, int] = {"rank": 0, "worker": 0, "other": 1, "launcher": 2, "keeper": 3}
    return tuple(sorted(groups, key=lambda item: (item.idle, order[item.role], len(item.pids))))
