"""A run directory of 64 ranks, 30 stalls and hostile strings wherever training can put any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack
from watchdog_train.core.model import (
    Because,
    CapturedProcess,
    CheckpointRef,
    Explanation,
    Milestone,
    Place,
    Plan,
    RankPlaces,
    Remedy,
    RemedyUse,
    RunProgress,
    Standstill,
    Who,
    said,
)
from watchdog_train.core.model.waits import FileWait
from watchdog_train.evidence.bundle import (
    Bundle,
    write_staged,
)

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "\u202eevil\u2066\u200b txt.exe",
    "name" * 2500,
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m",
    "</script></pre></details><h1>broken out</h1>",
    "'\"><svg onload=alert(2)>{{ 7*7 }}{% raw %}",
    "مرحبا بالعالم 漢字漢字",
    "line\r\x0b\x1bPq\x1b\\\x1b[8mhidden\ufeff\x7f\x85\u2028end",
)
RANKS = 64
STALLS = 30
BEGIN = 1_795_212_000.0


def hostile(i: int) -> str:
    return HOSTILE[i % len(HOSTILE)]


def make_hostile_run(run: Path) -> Path:
    """Write events.jsonl, trace.jsonl and one bundle; the run directory."""
    run.mkdir(parents=True)
    events = list(_events(run))
    lines = [
        msgspec.json.encode(msgspec.structs.replace(event, seq=i, mono=event.t - BEGIN + 1000.0))
        for i, event in enumerate(events, 1)
    ]
    (run / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for number in (STALLS - 1, STALLS):
        _bundle(run / "stalls" / f"{number:04d}")
    (run / "trace.jsonl").write_text("".join(_trace()), "utf-8")
    return run


def a_plan(attempt: int) -> Plan:
    used = None
    if attempt > 1:
        path = f"/data/{hostile(attempt)[:200]}/checkpoint-{attempt * 90}"
        used = CheckpointRef(
            path=path, format="hf", step=attempt * 90, how_checked=hostile(attempt)
        )
    remedies = (
        ()
        if attempt < 3
        else (RemedyUse(id="num-workers-0", kind="execution", why=said(hostile(attempt))),)
    )
    return Plan(
        attempt=attempt,
        why=said(hostile(attempt)),
        argv=("python", "train.py", f"--run_name={hostile(attempt)}"),
        env={},
        in_process=(),
        checkpoint=used,
        resume_via="hook" if used else "none",
        remedies=remedies,
    )


def _events(run: Path) -> Any:
    yield e.RunStarted(
        t=BEGIN, run_id=run.name, name=hostile(0), boot_id="b", host=hostile(1), pid=1, start=1,
        argv=("python", "train.py", *HOSTILE), cwd="/home/mia/" + hostile(4), run_dir=str(run),
        slot_dir=None, wtrain_version="0.1.0",
    )  # fmt: skip
    for i in range(STALLS + 1):
        number, t = i + 1, BEGIN + i * 900.0
        first = i * 90 + 1
        yield e.AttemptLaunching(t=t, attempt=number, token="t", plan=a_plan(number))
        yield e.AttemptLaunched(
            t=t + 1, attempt=number, pid=10, start=1, keeper_pid=9, keeper_start=1
        )
        yield e.FirstStep(t=t + 60, attempt=number, rank=0, pid=10, step=first, after_s=59.0)
        for j in range(10):
            yield e.Progress(
                t=t + 60 + 60 * j, attempt=number, ranks=(), members=(),
                progress=RunProgress(step=first + 12 * j, total_steps=3000, steps_s=0.2),
            )  # fmt: skip
        if i == STALLS:
            yield e.AttemptExited(
                t=t + 700, attempt=number, code=0, signal=None, how_known="keeper", step=first + 120
            )
            yield e.RunFinished(
                t=t + 701, attempt=number, outcome="succeeded", exit_code=0, warning=None,
                why=said(hostile(0)),
            )  # fmt: skip
            return
        stall_id = f"{number:04d}"
        yield e.Milestones(t=t + 760, attempt=number, ranks=_places(i))
        yield e.StallDeclared(
            t=t + 760, attempt=number, stall_id=stall_id, basis="quiet", phase="train",
            ranks=tuple(range(RANKS)), age_s=90.0, why=said(hostile(i)),
        )  # fmt: skip
        yield e.EvidenceCollected(
            t=t + 770, attempt=number, stall_id=stall_id, why="stall",
            dir=str(run / "stalls" / stall_id), captured=RANKS, missing=(), seconds=3.0,
            processes=tuple(_captured(rank) for rank in range(RANKS)), fingerprint=f"f{i % 3}",
            problem=None,
        )  # fmt: skip
        yield e.StallExplained(
            t=t + 771, attempt=number, stall_id=stall_id,
            explanation=Explanation(
                kind="hang",
                root=Standstill(
                    who=Who(pid=77, role="worker", rank=i % RANKS, name=hostile(i)),
                    doing=FileWait(call="open", path=hostile(i + 1)),
                    own=Place(function=hostile(i), file=hostile(i + 2), line=1),
                ),
                because=Because(
                    family="dataloader-worker-stuck", certainty="likely",
                    template=hostile(i + 1),
                ),
                remedies=(Remedy(name="num-workers-0", by="family"),),
            ),
        )  # fmt: skip
        yield e.AttemptExited(
            t=t + 790, attempt=number, code=None, signal=9, how_known="keeper", step=first + 120
        )
        yield e.CheckpointRejected(
            t=t + 795, attempt=number, path=hostile(i + 2), format="hf", why=said(hostile(i + 3))
        )


def _bundle(folder: Path) -> None:
    processes = tuple(
        ProcessEvidence(
            pid=100 + rank,
            start=1,
            ppid=10,
            role="rank",
            rank=rank,
            name=hostile(rank),
            command=("python", *HOSTILE),
            why_not=hostile(rank + 1),
            threads=(
                ThreadStack(
                    name=hostile(rank),
                    main=True,
                    frames=tuple(
                        Frame(function=hostile(rank % 3 + i), file=hostile(i)[:60], line=i)
                        for i in range(6)
                    ),
                ),
            ),
        )
        for rank in range(RANKS)
    )
    verdict = BundleVerdict(
        id=folder.name, why="stall", at=BEGIN, attempt=1, command=("python", *HOSTILE),
        processes=tuple(_captured(rank) for rank in range(RANKS)),
    )  # fmt: skip
    evidence = Evidence(why="stall", processes=processes)
    write_staged(folder, Bundle(verdict=verdict, explanation=None, evidence=evidence))


def _captured(rank: int) -> CapturedProcess:
    return CapturedProcess(
        pid=100 + rank, start=1, role="rank", rank=rank, worker=None, state="S", captured=True,
        why_not=None,
    )  # fmt: skip


def _places(i: int) -> tuple[RankPlaces, ...]:
    return tuple(
        RankPlaces(
            rank=rank,
            local_rank=rank % 8,
            pid=100 + rank,
            milestones=(
                Milestone(name="import torch", begin=1000.0, end=1004.0),
                Milestone(name=hostile(rank + i), begin=1004.0, end=None),
            ),
        )
        for rank in range(32)
    )


def _trace() -> Any:
    for i in range(STALLS + 1):
        for j in range(300):
            step = int(i * 90 + 1 + j * 0.4)
            of_all = [4, "S", "train", 1, [j, step, 0, 0, 0, 0, 0, 0], step, None, 0, 0, 0]
            ranks = [[rank, rank, *of_all] for rank in range(4)]
            t, begins = i * 900 + 60 + 2 * j, 0 if j else i + 1
            yield json.dumps({"t": t, "begins": begins, "ranks": ranks, "io_bytes": j}) + "\n"
        yield '{"t": "<script>", "ranks": 7}\nnot json\n'
