"""Captures tests/programs/families.py with the real collectors into tests/corpus/captured.

`python scripts/capture_corpus.py [FAMILY]...`: the evidence of three bundles of each, one file for
a family, paths and names of this machine replaced. It kills the processes it started and no others.
It needs `pip install datasets wandb`.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.corpus.cases import UNKNOWN, Case, write_cases
from watchdog_train.core.diagnosis.facts import Evidence, HostFacts, LogText
from watchdog_train.core.model import ExitStatus, Member
from watchdog_train.evidence import logs
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.evidence.discover import tree_of
from watchdog_train.evidence.exceptions import of_output
from watchdog_train.evidence.manual import collect_now
from watchdog_train.system import current

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = REPOSITORY / "tests" / "programs" / "families.py"
FOLDER = REPOSITORY / "tests" / "corpus" / "captured"
RUNS = 3
READY_S = 150.0
SETTLE_S = 3.0
FRAMES = 30
"""Of each thread."""
LOG_LINES = 40
RANKS = {
    "collective_mismatch": (0, 1),
    "rank_left_early": (0, 1),
    "rank0_only_work": (0, 1),
    "store_rendezvous": (0,),
    "ddp_init": (0, 1),
    "fsdp_state_gather": (0, 1),
    "gloo_timeout": (0, 1),
}
LOOK_AT = {"ddp_init": (0,)}
"""Ranks that are captured, where not all are."""
CRASHES = {"dataloader_worker_died", "oom_killer", "gloo_timeout"}
EXPECT = {
    "compiles_for_long": ("compile-worker", UNKNOWN),
    "healthy_slow": ("healthy-slow", UNKNOWN),
    "gil_deadlock": ("gil-deadlock", UNKNOWN),
    "fsdp_state_gather": ("fsdp-state-gather", "collective-mismatch"),
}


Started = list[tuple[subprocess.Popen[bytes], int]]
"""Each rank with the pipe that says that it is ready."""


def main() -> int:
    """Captures what was asked for, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    asked = parser.parse_args()
    every = re.findall(r"(?m)^def (\w+)\(\):", PROGRAM.read_text("utf-8"))
    names = asked.families or every
    known = [
        name
        for name in names
        if name not in ("evaluate", "tokenize_dataset", "group", "stay_quietly")
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in known:
        cases = []
        for run in range(1, RUNS + 1):
            case = capture(name, run)
            if case is None:
                print(f"{name}: run {run} was not captured", flush=True)
                break
            cases.append(case)
        if len(cases) == RUNS:
            write_cases(FOLDER / f"{name.replace('_', '-')}.jsonl", cases)
            print(f"{name}: {RUNS} captures", flush=True)
    return 0


def capture(name: str, run: int) -> Case | None:
    """One run of a program as a case of the corpus."""
    with tempfile.TemporaryDirectory(prefix="capture-") as place:
        folder = Path(place)
        started = [_start(name, rank, folder) for rank in RANKS.get(name, (0,))]
        try:
            if name in CRASHES:
                return _crashed(name, run, started, folder)
            if not all(_wait_ready(reader) for _, reader in started):
                return None
            time.sleep(SETTLE_S)
            return _looked(name, run, started, folder)
        finally:
            for process, reader in started:
                _end(process)
                os.close(reader)


def _start(name: str, rank: int, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    reader, writer = os.pipe()
    environment = {**os.environ, "READY_FD": str(writer), "PYTHONPATH": str(PROGRAM.parent)}
    if name in RANKS:
        environment |= {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_port(folder)),
        }
    with (folder / f"rank{rank}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), name],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    return process, reader


def _port(folder: Path) -> int:
    path = folder / "port"
    if not path.exists():
        with socket.create_server(("127.0.0.1", 0)) as server:
            path.write_text(str(server.getsockname()[1]))
    return int(path.read_text())


def _wait_ready(reader: int) -> bool:
    ready, _, _ = select.select([reader], [], [], READY_S)
    return bool(ready) and os.read(reader, 16) != b""


def _end(process: subprocess.Popen[bytes]) -> None:
    members = tree_of(current(), process.pid)
    for member in reversed(members):
        current().send_signal(member.identity, 9)
    process.kill()
    process.wait(10)


def _looked(name: str, run: int, started: Started, folder: Path) -> Case | None:
    members: list[Member] = []
    for rank, (process, _) in zip(RANKS.get(name, (0,)), started, strict=True):
        if rank in LOOK_AT.get(name, (rank,)):
            members += [
                msgspec.structs.replace(member, rank=rank)
                for member in tree_of(current(), process.pid)
            ]
    if not members:
        return None
    out = folder / "stalls" / "0001"
    out.mkdir(parents=True)
    collect_now(members, out)
    bundle = read_bundle(out)
    if bundle is None:
        return None
    evidence = msgspec.structs.replace(bundle.evidence, logs=_logs(folder), host=HostFacts())
    return _case(name, run, evidence, folder)


def _crashed(name: str, run: int, started: Started, folder: Path) -> Case | None:
    codes = []
    for process, _ in started:
        try:
            codes.append(process.wait(READY_S))
        except subprocess.TimeoutExpired:  # noqa: PERF203
            return None
    code = next((code for code in codes if code), 0)
    evidence = Evidence(
        why="crash",
        logs=_logs(folder),
        exceptions=of_output(map(str, sorted(folder.glob("rank*.log"))), None),
        exit=ExitStatus(
            code=code if code >= 0 else None, signal=-code if code < 0 else None, how_known="keeper"
        ),
    )
    return _case(name, run, evidence, folder)


def _logs(folder: Path) -> tuple[LogText, ...]:
    found = logs.tails(map(str, sorted(folder.glob("rank*.log"))), LOG_LINES)
    return tuple(
        msgspec.structs.replace(log, rank=int(log.source.removeprefix("rank")[:-4]))
        for log in found
    )


def _case(name: str, run: int, evidence: Evidence, folder: Path) -> Case:
    """Innermost frames alone, as whole stacks of native pools are long; no name of this machine."""
    processes = tuple(
        msgspec.structs.replace(
            process,
            threads=tuple(
                msgspec.structs.replace(thread, frames=thread.frames[:FRAMES])
                for thread in process.threads
            ),
        )
        for process in evidence.processes
    )
    evidence = msgspec.structs.replace(evidence, processes=processes)
    expect = EXPECT.get(name, (name.replace("_", "-"),))
    text = msgspec.json.encode(Case(name=f"run-{run}", expect=expect, evidence=evidence)).decode()
    return msgspec.json.decode(_neutral(text, folder), type=Case)


def _neutral(text: str, folder: Path) -> str:
    for path, instead in (
        (str(folder), "/home/mia/run"),
        (str(PROGRAM.parent), "/home/mia/job"),
        (tempfile.gettempdir(), "/tmp"),
        (sys.prefix, "/home/mia/venv"),
        (sys.base_prefix, "/usr"),
        (str(Path.home()), "/home/mia"),
        (socket.gethostname(), "node1"),
    ):
        text = text.replace(path, instead)
    text = re.sub(r"/[^\s\"']{0,200}?/(?=site-packages/)", "/home/mia/venv/lib/python3/", text)
    return re.sub(r"/[^\s\"']{1,100}?/Python-3[\d.]{1,6}/", "", text)


if __name__ == "__main__":
    if shutil.which("py-spy") is None and not (Path(sys.prefix) / "bin" / "py-spy").exists():
        raise SystemExit("py-spy is needed: pip install py-spy")
    sys.exit(main())
