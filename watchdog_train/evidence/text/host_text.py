"""The machine and the environment as text tells them: `free`, `df`, meminfo, NAME=value. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from watchdog_train.core.diagnosis.facts import HostFacts

_SHM = re.compile(r"\S+\s+.*?\b(?P<percent>\d{1,3})%\s+/dev/shm\b")
_FREE = re.compile(
    r"(?P<name>Mem|Swap):\s+(?P<total>[\d.]+\w{0,2})\s+(?P<used>[\d.]+\w{0,2})\s+(?P<rest>.*)"
)
_MEMINFO = re.compile(r"(?P<name>MemTotal|MemAvailable|SwapTotal|SwapFree):\s+(?P<value>\d+) kB")
_MAC_SWAP = re.compile(r"vm\.swapusage: total = (?P<total>[\d.]+)M\s+used = (?P<used>[\d.]+)M")
_LOAD = re.compile(r"load averages?: (?P<load>\d+[.,]\d+)")
_CORES = re.compile(
    r"(?:^CPU\(s\):|\bnproc\b\s*[:=]|\bcpus?\b\s*[:=]|cores\s*[:=])\s*(?P<cores>\d{1,4})\b"
)
_VARIABLE = re.compile(
    r"(?:export |declare -x )?(?P<name>(?:TOKENIZERS_PARALLELISM|OMP_NUM_THREADS|WANDB_MODE|"
    r"HF_HUB_OFFLINE|NCCL_\w{1,60}|WORLD_SIZE|RANK|LOCAL_RANK|CUDA_LAUNCH_BLOCKING))="
    r"[\"']?(?P<value>[^\s\"']{1,200})"
)
_VMSTAT = re.compile(r"\s*r\s+b\s+swpd\s+free\s.{0,40}\ssi\s+so\s")
_VMSTAT_ROWS = 2
"""So many at least; the first one is the mean since boot, and counts only when there are two."""
_UNITS = {"": 1.0, "K": 1.0, "M": 2**10, "G": 2**20, "T": 2**30}


def host_facts(lines: Iterable[str]) -> HostFacts:
    """Shares that the lines tell; None for the rest."""
    shm: float | None = None
    load: float | None = None
    cores: int | None = None
    values: dict[str, float] = {}
    columns: list[str] = []
    swapped: list[float] = []
    for line in lines:
        if _VMSTAT.match(line):
            columns = line.split()
        elif columns and len(cells := line.split()) == len(columns) and "".join(cells).isdigit():
            row = dict(zip(columns, cells, strict=True))
            swapped.append((float(row["si"][:12]) + float(row["so"][:12])) * 1024)
        if "shm" in line and (match := _SHM.search(line)):
            shm = min(1.0, int(match["percent"]) / 100)
        elif match := _FREE.match(line.strip()):
            _from_free(match, values)
        elif match := _MEMINFO.match(line.strip()):
            values[match["name"]] = float(match["value"])
        elif match := _MAC_SWAP.search(line):
            values["SwapTotal"] = float(match["total"])
            values["SwapFree"] = float(match["total"]) - float(match["used"])
        elif match := _LOAD.search(line):
            load = float(match["load"].replace(",", "."))
        elif cores is None and (match := _CORES.search(line)):
            cores = int(match["cores"])
    return HostFacts(
        shm_used_share=shm,
        swap_used_share=_used(values.get("SwapTotal"), values.get("SwapFree")),
        memory_available_share=_share(values.get("MemAvailable"), values.get("MemTotal")),
        swap_bytes_s=_least(swapped),
        load_per_core=load / cores if load is not None and cores else None,
    )


def _least(swapped: Sequence[float]) -> float | None:
    if len(swapped) < _VMSTAT_ROWS:
        return None
    return min(swapped[1:] if len(swapped) > _VMSTAT_ROWS else swapped)


def _from_free(match: re.Match[str], values: dict[str, float]) -> None:
    rest = match["rest"].split()
    name = match["name"]
    values[f"{name}Total"] = _amount(match["total"])
    free = rest[0] if name == "Swap" else (rest[3] if len(rest) > 3 else rest[-1]) if rest else ""
    if free:
        values["SwapFree" if name == "Swap" else "MemAvailable"] = _amount(free)


def _amount(text: str) -> float:
    match = re.fullmatch(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)(?P<unit>[KMGT]?)i?B?", text)
    return float(match["number"]) * _UNITS[match["unit"]] if match else 0.0


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(1.0, part / whole)


def _used(total: float | None, free: float | None) -> float | None:
    share = _share(free, total)
    return None if share is None else 1.0 - share


def environment(lines: Iterable[str]) -> dict[str, str]:
    """The few variables that a rule may ask for, where the text sets them."""
    found: dict[str, str] = {}
    for line in lines:
        if "=" in line:
            for match in _VARIABLE.finditer(line[:500]):
                found.setdefault(match["name"], match["value"])
    return found
