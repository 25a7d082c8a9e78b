"""Stacks as plain values: frames, threads that wait in every healthy run.

Knows no tool and no process: collectors parse their output into these values. It never judges.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

from watchdog_train.core.model import Value

FRAMES_CAP = 400
"""Frames kept of one thread: a runaway recursion has thousands; its ends explain it."""
THREADS_CAP = 512
NAME_CAP = 200


class Frame(Value):
    function: str
    """As the tool names it, with the class if it knows it: `Queue.get`."""
    file: str
    line: int
    native: bool = False
    source: str | None = None
    """Text of the line, if it could be read; untrusted."""

    @property
    def name(self) -> str:
        """The function alone: tools and Python versions differ in naming the class."""
        return plain_name(self.function)

    @property
    def short(self) -> str:
        """The file from its package on."""
        return short_file(self.file)

    def __str__(self) -> str:
        at = f":{self.line}" if self.line else ""
        return f"{self.name} ({self.short}{at})"


class ThreadStack(Value):
    frames: tuple[Frame, ...]
    """Innermost first."""
    name: str | None = None
    os_id: int | None = None
    main: bool = False
    active: bool | None = None
    owns_gil: bool = False


def printable(text: str, cap: int = NAME_CAP) -> str:
    """Names come from the training: a terminal must not execute them."""
    text = text[-cap:]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


_COMPILED_APART = re.compile(r"(?:\.(?:part|isra|constprop|cold|lto_priv|llvm)(?:\.\d+)?)+\Z")


@lru_cache(maxsize=8192)
def plain_name(function: str) -> str:
    """`Queue.get` and `DS.fetch.<locals>.<listcomp>` without their qualification.

    Native names without the suffixes of compilers and linkers: `wait@@GLIBC_2.3`, `f.part.0`.
    """
    function = _COMPILED_APART.sub("", function.partition("@")[0] or function)
    return function.rpartition(".")[2] or function


EITHER = " || "
_ROOTS = re.compile(
    r"(?:.*/)?(?:site-packages|dist-packages|lib(?:32|64)?/python\d(?:\.\d+)?t?|python\d+\.zip|[Ll]ib)/"
)


@lru_cache(maxsize=8192)
def both_ends(text: str, cap: int) -> str:
    """Cut in the middle: text about a long command has its result at the end."""
    head, tail = cap // 2, cap - cap // 2 - 1
    return text if len(text) <= cap else f"{text[:head]}…{text[-tail:]}"


def short_file(file: str) -> str:
    """A file from its package on; other files by name: directories differ by machine."""
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


_INSTALLED = re.compile(
    r".*(?:/(?:site-packages|dist-packages)/|/lib(?:32|64)?/python\d|/python\d+\.zip/|/bin/[\w-]+\Z|"
    r"/(?:(?:[Aa]na|[Mm]ini)?conda|(?:mini|mamba)forge)3?/(?:envs/[^/]+/)?[Ll]ib/|"
    r"/[Pp]ython[\d.]*/[Ll]ib/|/(?:torch|watchdog_train)/\w+/)|<frozen "
)


def is_own_file(file: str) -> bool:
    """Whether a Python file is the user's own: neither Python's nor an installed library's."""
    return _INSTALLED.match(file.replace("\\", "/")) is None


_PACKAGES = re.compile(
    r"(?:torch\w*|transformers|accelerate|lightning\w*|pytorch_lightning|datasets|deepspeed|"
    r"multiprocess\w*|billiard|huggingface_hub|hf_xet|trl|peft|wandb|numpy|pandas|urllib3|requests|"
    r"httpx|httpcore|filelock|tqdm|click|h5py|tables|PIL|cv2|fsspec|s3fs|aiohttp|botocore|tokenizers|"
    r"triton|horovod|megatron|fairseq\w*|timm|mmengine|mmcv|ray|celery|kombu|redis|joblib|loky|"
    r"sklearn|scipy|tensorboard\w*|safetensors|diffusers|sentence_transformers|llamafactory|axolotl|"
    r"comet_ml|mlflow|neptune|clearml|swanlab|ultralytics|portalocker|fasteners|watchdog_train)/"
)


def is_library(frame: Frame) -> bool:
    file = frame.file.replace("\\", "/")
    if frame.native or _ROOTS.match(file) or "/watchdog_train/" in file:
        return True
    if file.startswith("/") or file[1:3] == ":/":
        return False
    if "/" not in file:
        return (
            file.startswith(("<frozen", "<string"))
            or file.removesuffix(".py") in sys.stdlib_module_names
        )
    return _PACKAGES.match(file) is not None or file.split("/")[0] in sys.stdlib_module_names


class _Wanted(Value):
    function: re.Pattern[str]
    file: re.Pattern[str] | None
    anywhere: re.Pattern[str] | None
    """For libraries outside of site-packages, a checkout of torch: only parts of the pattern that
    name enough of the path; else a user's own folder called `datasets` would be the library."""


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> _Wanted:
    function, _, file = pattern.partition(" (")
    file = file.strip().removesuffix(")")
    parts = [part.strip() for part in file.split("|")]
    long = [part for part in parts if part.count("/") > 1 or ("/" in part and "*" not in part)]
    return _Wanted(
        function=_alternatives(function, ""),
        file=_alternatives(file, r"(?:.*/)?") if file else None,
        anywhere=_alternatives("|".join(long), r"(?:.*/)?") if long else None,
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
    return wanted.anywhere is not None and bool(wanted.anywhere.match(file.replace("\\", "/")))


def frame_matches(pattern: str, frame: Frame) -> bool:
    """Whether a frame fits `function`, `function (file)`, with `|` for or and `*` for anything.

    ` || ` between several such patterns: one of them.
    """
    return _matches(pattern, frame.name, frame.function, frame.file)


def any_matches(pattern: str, frames: Iterable[Frame]) -> bool:
    return any(frame_matches(pattern, frame) for frame in frames)


def find_chain(chain: Sequence[str], frames: Sequence[Frame]) -> bool:
    """Whether the patterns occur in this order, outermost first, with gaps allowed."""
    rest = reversed(frames)  # each pattern continues behind the match of the one before
    return all(any(frame_matches(pattern, frame) for frame in rest) for pattern in chain)


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
"""Frames of a pure wait; the caller shows what it waits for."""

_CHILD_START = "_bootstrap (*multiprocess*/process.py|billiard/process.py)"
_FORK = (
    "_launch (multiprocess*/popen_fork.py|billiard/popen_fork.py) || "
    "os_fork*|posix_fork|__libc_fork|_Fork|fork|arch_fork"
)
_SPAWN = "spawn_main (*multiprocess*/spawn.py|billiard/spawn.py)"


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames of this process: a forked child still shows the parent's below its start."""
    for position, frame in enumerate(frames):
        if frame_matches(_CHILD_START, frame):
            return tuple(frames[: position + 1])
    return tuple(frames)


def is_forked(frames: Sequence[Frame]) -> bool | None:
    """Whether fork started the process; None: its stack does not show it."""
    for frame in frames:
        if frame_matches(_SPAWN, frame):
            return False
        if frame_matches(_FORK, frame):
            return True
    return None


def trimmed(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Without native frames, and without the pure waits at the inner end."""
    python = [frame for frame in frames if not frame.native]
    start = 0
    while start < len(python) - 1 and any(frame_matches(wait, python[start]) for wait in WAITS):
        start += 1
    return tuple(python[start:]) or tuple(frames)


def deciding_frame(frames: Sequence[Frame]) -> Frame | None:
    """The frame to show a person: the caller of the wait, not the wait."""
    rest = trimmed(own_frames(frames))
    return rest[0] if rest else None


def place(frames: Sequence[Frame], depth: int = 12) -> tuple[str, ...]:
    """A stack without pids, addresses and line numbers, which differ between attempts."""
    return tuple(
        f"{frame.name} ({frame.short})"
        for frame in trimmed(own_frames(frames))[:depth]
        if not frame.name.startswith("0x")
    )
