"""Lines of the kernel log that may name a cause: OOM killer, GPU, disk, file server. Only reads.

Lines from before the training are left out, and a line that names a process is evidence only if
the process is the training's: on a shared machine others are killed, too.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from watchdog_train.core.diagnosis.facts import LogText
from watchdog_train.evidence.logs import clean_line
from watchdog_train.system import proc

SOURCE = "kernel log"
_DEVICE = "/dev/kmsg"
_RECORD_BYTES = 8192
_RECORDS_CAP = 100_000
_READ_S = 0.3
_LINES_CAP = 60
_MATTERS = re.compile(
    r"NVRM: |fallen off the bus|Out of memory|oom-kill|Killed process|oom_reaper|"
    r"blocked for more than|I/O error|EXT4-fs error|XFS .{0,40}(?:error|shutdown)|"
    r"nfs: server .{1,100} (?:not responding|OK)|lost page write|segfault at|AER: .{0,80}error|"
    r"amdgpu.{0,80}(?:timeout|reset)|Machine check|EDAC .{0,80}UE",
    re.IGNORECASE,
)
_NAMES_A_PROCESS = re.compile(
    r"(?:Killed process |oom_reaper: reaped process |,pid=|pid[=:] ?'?|task \S{1,40}:)"
    r"(?P<pid>\d{1,10})"
)
_NAMES_A_FAULT = re.compile(r"segfault at|: \w{0,40}\[(?P<pid>\d{1,10})\]")
_OF_THE_GPU = re.compile(r"NVRM: |fallen off the bus|amdgpu", re.IGNORECASE)
_SERVER = re.compile(r"nfs: server (?P<name>\S{1,100}) (?P<state>not responding|OK)")


def started_at(starts: Iterable[int]) -> float | None:
    """The kernel's clock, in seconds, when the first of these processes was started.

    `starts` are in clock ticks since boot; the log's clock does not count suspended time.
    """
    ticks = [start for start in starts if start > 0]
    uptime = (proc.text("/proc/uptime") or "").split()
    if sys.platform == "win32" or not ticks or not uptime:
        return None
    age_s = float(uptime[0]) - min(ticks) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def read(since_s: float | None, path: str = _DEVICE) -> tuple[tuple[str, ...], str | None]:
    """Lines that matter, oldest first, and why none can be read.

    Args:
        since_s: the kernel's clock; nothing older is given. None: the last ten minutes.
        path: where the records are.
    """
    since = time.monotonic() - 600.0 if since_s is None else since_s
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        return (), f"the kernel log may not be read ({error.strerror})"
    found: list[str] = []
    until = time.monotonic() + _READ_S
    try:
        for _ in range(_RECORDS_CAP):
            if time.monotonic() > until:
                break
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # overwritten while it was read: the next one is there
            except OSError:
                break  # the end
            line = _line(record, since)
            if line is not None:
                found.append(line)
            if not record:
                break
    finally:
        os.close(descriptor)
    return tuple(found[-_LINES_CAP:]), None


def _line(record: bytes, since: float) -> str | None:
    """`priority,number,microseconds,flags;text`: the text with its time, when it matters."""
    head, _, text = record.partition(b";")
    fields = head.split(b",")
    with suppress(ValueError, IndexError):
        at = int(fields[2]) / 1e6
        words = text.partition(b"\n")[0].decode("utf-8", "replace")
        if at >= since and _MATTERS.search(words):
            return f"[{at:.6f}] {clean_line(words)}"
    return None


def evidence(lines: Iterable[str], pids: Collection[int], *, uses_gpu: bool) -> tuple[LogText, ...]:
    """Lines that name a process or GPU of the training, or a file server that is still silent."""
    kept: list[str] = []
    silent: dict[str, str] = {}
    for line in lines:
        server = _SERVER.search(line)
        if server is not None:
            silent.pop(server["name"], None)
            if server["state"] != "OK":
                silent[server["name"]] = line
            continue
        match = _NAMES_A_PROCESS.search(line) or _NAMES_A_FAULT.search(line)
        named = int(match["pid"]) if match and match["pid"] else None
        if named in pids or (named is None and uses_gpu and _OF_THE_GPU.search(line)):
            kept.append(line)
    kept += silent.values()
    return (LogText(source=SOURCE, lines=tuple(kept)),) if kept else ()
