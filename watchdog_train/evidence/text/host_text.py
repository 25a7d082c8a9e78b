"""The machine and the environment as text tells them: `free`, `df`, `vmstat`, NAME=value. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchdog_train.core.diagnosis.facts import HostFacts

_SHM = re.compile(r"\S+\s+.*?\b(?P<percent>\d{1,3})%\s+/dev/shm\b")
_FREE = re.compile(
    r"(?P<name>Mem|Swap):\s+(?P<total>[\d.]+\w{0,2})\s+(?P<used>[\d.]+\w{0,2})\s+(?P<rest>.*)"
)
_SWAP = re.compile(
    r"(?i:\bswap)\W{1,4}(?P<used>[\d.]{1,8}) ?[GM]?i?B? ?(?:\([\d.]+ ?%\) )?"
    r"(?:/|of) ?(?P<total>[\d.]{1,8})"
)
_SWAP_USAGE = re.compile(r"swapusage: total = (?P<total>[\d.]+)M +used = (?P<used>[\d.]+)M")
_VARIABLE = re.compile(
    r"(?:export |declare -x )?(?P<name>(?:TOKENIZERS_PARALLELISM|OMP_NUM_THREADS|WANDB_MODE|"
    r"HF_HUB_OFFLINE|NCCL_\w{1,60}|WORLD_SIZE|RANK|LOCAL_RANK|CUDA_LAUNCH_BLOCKING))="
    r"[\"']?(?P<value>[^\s\"']{1,200})"
)
_GPU = re.compile(
    r".*?\b(?P<power>\d{1,4})W\s*/\s*(?P<limit>\d{1,4})W\s*\|.{1,60}\|\s*(?P<busy>\d{1,3})%"
)
_GPU_ROW = re.compile(r"\d{1,2}, (?=.*?\b(?P<busy>\d{1,3}) %)(?=.*?\b(?P<power>\d{1,4})\.\d{2} W)")
"""Of nvidia-smi's table, and of what it answers to a query."""
_LIMIT_W, _SPINS = 250, 0.4
"""The limit of a card where none is printed; below this share of it, kernels only wait."""
_BUSY_PERCENT = 98
_UNITS = {"": 1.0, "K": 1.0, "M": 2**10, "G": 2**20, "T": 2**30}


def host_facts(lines: Iterable[str]) -> HostFacts:
    """Shares that the lines tell; None for the rest."""
    shm: float | None = None
    values: dict[str, float] = {}
    swapped: list[float] = []
    columns: list[str] = []
    spinning: list[bool] = []
    for line in lines:
        words = line.split()
        if "si" in words and "so" in words:
            columns = words
        elif columns and len(words) == len(columns) and all(word.isdigit() for word in words):
            row = dict(zip(columns, words, strict=True))
            swapped.append((int(row["si"]) + int(row["so"])) * 1024.0)
        if "W" in line and (gpu := _GPU.match(line) or _GPU_ROW.match(line)):
            limit = int(gpu.groupdict().get("limit") or _LIMIT_W)
            spinning.append(
                int(gpu["busy"]) >= _BUSY_PERCENT and int(gpu["power"]) < _SPINS * limit
            )
        if "shm" in line and (match := _SHM.search(line)):
            shm = min(1.0, int(match["percent"]) / 100)
        elif match := _FREE.match(line.strip()):
            _from_free(match, values)
        elif match := _SWAP.search(line) or _SWAP_USAGE.search(line):
            values["SwapTotal"] = _amount(match["total"])
            values["SwapFree"] = values["SwapTotal"] - _amount(match["used"])
    free = _share(values.get("SwapFree"), values.get("SwapTotal"))
    return HostFacts(
        shm_used_share=shm,
        swap_used_share=None if free is None else 1.0 - free,
        # The first row of vmstat is the mean since the machine was started.
        swap_bytes_s=sum(swapped[1:]) / len(swapped[1:]) if len(swapped) > 1 else None,
        memory_available_share=_share(values.get("MemAvailable"), values.get("MemTotal")),
        gpus_spin=len(spinning) > 1 and all(spinning),
    )


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


def environment(lines: Iterable[str]) -> dict[str, str]:
    """The few variables that a rule may ask for, where the text sets them."""
    found: dict[str, str] = {}
    for line in lines:
        if "=" in line:
            for match in _VARIABLE.finditer(line[:500]):
                found.setdefault(match["name"], match["value"])
    return found
