"""Damages one checkpoint in every way of scripts/bench/checkpoints, and asks what is seen of it."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint_makers import Maker

from watchdog_train.checkpoints.disk import sizes_of
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.core.model import SaveRecord

WAYS = ("quick", "full", "recorded")
"""recorded: at level quick, with the save hook's record of the finished save."""


@dataclass
class Seen:
    """What was seen of one kind of damage in one format, by way of looking."""

    total: int = 0
    found: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    missed_in: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass
class Result:
    """One format."""

    maker: Maker
    size_bytes: int = 0
    damages: dict[str, Seen] = field(default_factory=dict)
    times_ms: dict[str, float] = field(default_factory=dict)
    whole: dict[str, bool | None] = field(default_factory=dict)
    """Of the undamaged one: a check that rejects everything finds everything, too."""


class Bench:
    """The checkpoint of step 20 beside that of step 10."""

    def __init__(self, maker: Maker, root: Path, cuts: int, seed: int) -> None:
        self.maker, self.root, self.cuts = maker, root, cuts
        self.random = random.Random(f"{seed} {maker.name}")
        maker.save(root, 10)
        self.path = maker.save(root, 20)
        self.sizes = sizes_of(str(self.path))
        self.record = SaveRecord(
            path=str(self.path), format="torch", step=20, t=time.time(), files=self.sizes
        )

    def file(self, name: str) -> Path:
        return self.path / name if self.path.is_dir() else self.path

    def verdict(self, way: str) -> bool | None:
        """What is said of the newest now; None also where it is not found at all."""
        request = SurveyRequest(
            directories=(str(self.root),),
            check="all",
            settle_s=0.0,
            level="full" if way == "full" else "quick",
            saves=(self.record,) if way == "recorded" else (),
        )
        told = {item.path: item.whole for item in survey(request).findings}
        # timm: a link to `last` is the same file.
        return told.get(str(self.path))

    @contextmanager
    def changed(self, name: str) -> Iterator[Path]:
        """A file that may be written over; afterwards it is what it was, its times as well."""
        path = self.file(name)
        before, times = path.read_bytes(), path.stat()
        try:
            yield path
        finally:
            if not path.exists() or path.read_bytes() != before:
                path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def write(self, path: Path, content: bytes) -> None:
        """In place and with the old times: those must not give the damage away."""
        times = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def measure(maker: Maker, root: Path, cuts: int, seed: int) -> Result:
    """Every damage of every file of one checkpoint."""
    bench = Bench(maker, root, cuts, seed)
    result = Result(maker=maker, size_bytes=sum(size for size, _ in bench.sizes.values()))
    for way in WAYS:
        result.whole[way] = bench.verdict(way)
        took = []
        for _ in range(7):
            begin = time.perf_counter()
            bench.verdict(way)
            took.append((time.perf_counter() - begin) * 1e3)
        result.times_ms[way] = statistics.median(took)
    for name in bench.sizes:
        _damage_file(bench, name, result)
    _stale(bench, result)
    return result


def _note(result: Result, kind: str, name: str, bench: Bench) -> None:
    seen = result.damages.setdefault(kind, Seen())
    seen.total += 1
    quick = bench.verdict("quick")
    for way in WAYS:
        # What the quick check has found damaged, the two others find by the same check.
        whole = quick if quick is False or way == "quick" else bench.verdict(way)
        seen.found[way] += whole is not True
        seen.unknown[way] += whole is None
        if whole is True:
            seen.missed_in[way, Path(name).name] += 1


def _damage_file(bench: Bench, name: str, result: Result) -> None:
    with bench.changed(name) as path:
        content = path.read_bytes()
        for _ in range(bench.cuts):
            bench.write(path, content[: bench.random.randrange(len(content))])
            _note(result, "truncated", name, bench)
        for _ in range(max(1, bench.cuts // 5)):
            flipped = bytearray(content)
            position = bench.random.randrange(len(content))
            flipped[position] ^= 1 << bench.random.randrange(8)
            bench.write(path, bytes(flipped))
            _note(result, "one bit", name, bench)
        for share in (0.5, 0.02):
            tail = max(1, int(len(content) * share))
            bench.write(path, content[:-tail] + bytes(tail))
            _note(result, "zero tail", name, bench)
        if len(bench.sizes) > 1:
            path.unlink()
            _note(result, "file missing", name, bench)


def _stale(bench: Bench, result: Result) -> None:
    """A save over a complete older one that was cut: some files new, the marker old."""
    if not bench.path.is_dir():
        return
    in_order = sorted(bench.sizes, key=lambda name: bench.sizes[name][1])
    later_s = max(mtime for _, mtime in bench.sizes.values()) / 1e9 + 60
    backup = bench.root.with_name("backup")
    shutil.copytree(bench.path, backup)
    for number, name in enumerate(in_order[:-1], start=1):
        os.utime(bench.file(name), (later_s + number, later_s + number))
        _note(result, "stale marker", name, bench)
    shutil.rmtree(bench.path)
    shutil.copytree(backup, bench.path)
