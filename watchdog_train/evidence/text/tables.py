"""Process lists in text: `ps`, `top` and `/proc/PID/status`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core.diagnosis.stacks import printable
from watchdog_train.core.model import Value

ROWS_CAP = 2000
_COLUMNS = {"PID": "pid", "LWP": "", "SPID": "", "TID": "", "PPID": "ppid", "STAT": "state",
            "S": "state", "STATE": "state", "%CPU": "cpu", "WCHAN": "wchan", "COMMAND": "command",
            "CMD": "command", "ARGS": "command", "COMM": "command"}  # fmt: skip
_AUX = "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND"
_AUX_ROW = re.compile(
    r"\S+\s+\d{1,10}\s+\d{1,5}\.\d\s+\d{1,3}\.\d\s+\d+\s+\d+\s+\S+\s+[RSDTtZXI][<NLsl+]{0,5}\s+\S+\s+\d+:"
)
_EF = "UID PID PPID C STIME TTY TIME CMD"
_PS = re.compile(
    r"\bps\s+(?:.{0,100}?-\w{0,5}o[ =]?(?P<columns>[\w:,%=]{3,200})|(?P<style>-?\w{1,8}))"
)
_ASKED = {"PCPU": "%CPU", "C": "", "STATUS": "STAT"}
_STATUS_FIELD = re.compile(
    r"\s*(?P<key>Name|State|Pid|PPid|wchan|WCHAN|Wchan|syscall|VmRSS|cpu|CPU)\s*[:=]\s*(?P<value>\S.*)"
)
_BRANCH = re.compile(r"\A(?:\| ?)*\\_ ")
"""What `ps --forest` draws before a child's command."""
_STATE_LETTER = re.compile(r"(?P<letter>[RSDTtZXI])(?:[<NLsl+]{0,5})?(?:\s|\(|\Z)")


class Row(Value):
    """What a list says about one process."""

    pid: int | None = None
    ppid: int | None = None
    state: str | None = None
    cpu_share: float | None = None
    wchan: str | None = None
    command: str | None = None


def read_processes(lines: Iterable[str]) -> tuple[Row, ...]:
    """Every process that a list in these lines describes; never raises."""
    rows: list[Row] = []
    columns: list[str] | None = None
    begun = 0
    status: dict[str, str] = {}
    for line in lines:
        if len(rows) >= ROWS_CAP:
            break
        header = _header(line) or _without_header(line)
        if columns is None and _AUX_ROW.match(line):
            columns = _header(_AUX)
        if header is not None:
            columns, begun = header, len(rows)
            continue
        if columns is not None:
            row = _row(columns, line)
            if row is not None:
                rows.append(row)
                continue
            if line.strip() and len(rows) > begun:
                columns = None
        field = _STATUS_FIELD.match(line)
        if field:
            key = field["key"].lower()
            if key in status and key in ("name", "pid"):
                rows += _from_status(status)
                status = {}
            status.setdefault(key, field["value"].strip())
    return tuple([*rows, *_from_status(status)][:ROWS_CAP])


def _header(line: str) -> list[str] | None:
    words = line.split()
    if "PID" not in words or len(words) < 3 or len(words) > 24:
        return None
    upper = [word for word in words if word.isupper() or word[:1] == "%"]
    if len(upper) < len(words) - 1 or not {"STAT", "S", "CMD", "COMMAND", "STATE"} & set(words):
        return None
    return [_COLUMNS.get(word, "") for word in words]


def _without_header(line: str) -> list[str] | None:
    """The columns that a command asks for: `ps aux | grep python` prints no header."""
    asked = _PS.search(line) if "ps " in line else None
    if asked is None:
        return None
    if asked["columns"] is not None:
        names = [one.partition(":")[0].rstrip("=").upper() for one in asked["columns"].split(",")]
        return _header(" ".join(_ASKED.get(name, name) or name for name in names))
    return _header(_AUX if "u" in asked["style"] else _EF if "f" in asked["style"] else "")


def _row(columns: Sequence[str], line: str) -> Row | None:
    words = line.split(maxsplit=len(columns) - 1)
    if len(words) < min(len(columns), 3) or "pid" not in columns:
        return None
    values = dict(zip(columns, words, strict=False))
    if not values.get("pid", "").isdigit():
        return None
    command = _BRANCH.sub("", values.get("command", ""))
    state = values.get("state", "")
    if "<defunct>" in command:
        state = "Z"
    letter = _STATE_LETTER.match(state)
    cpu = values.get("cpu", "")
    wchan = values.get("wchan")
    return Row(
        pid=int(values["pid"]),
        ppid=int(values["ppid"]) if values.get("ppid", "").isdigit() else None,
        state=letter["letter"] if letter else None,
        cpu_share=float(cpu) / 100 if re.fullmatch(r"\d{1,5}(?:\.\d+)?", cpu) else None,
        wchan=wchan if wchan not in (None, "-", "0") else None,
        command=printable(command, 1000) or None,
    )


def _from_status(status: dict[str, str]) -> list[Row]:
    if not status.keys() & {"state", "wchan"}:
        return []
    letter = _STATE_LETTER.match(status.get("state", ""))
    pid, ppid = status.get("pid", ""), status.get("ppid", "")
    wchan = status.get("wchan", "").split(" ")[0]
    if letter is None and not re.fullmatch(r"[a-z_]\w{3,60}", wchan):
        return []
    return [
        Row(
            pid=int(pid) if pid.isdigit() else None,
            ppid=int(ppid) if ppid.isdigit() else None,
            state=letter["letter"] if letter else None,
            wchan=wchan if len(wchan) > 1 else None,
            command=printable(status.get("name", "")) or None,
        )
    ]


def merged(rows: Iterable[Row]) -> dict[int, Row]:
    """One row a pid, later lists filling in what earlier ones left open."""
    found: dict[int, Row] = {}
    for row in rows:
        if row.pid is None:
            continue
        known = found.get(row.pid)
        found[row.pid] = row if known is None else _fill(known, row)
    return found


def _fill(known: Row, more: Row) -> Row:
    missing = {
        name: getattr(more, name)
        for name in ("ppid", "state", "cpu_share", "wchan", "command")
        if getattr(known, name) is None
    }
    return msgspec.structs.replace(known, **missing)
