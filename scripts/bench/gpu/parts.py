"""What scripts/gpu asks a device: each part runs alone, `python -m gpu.parts NAME SECONDS`.

It writes its answer into answer.json whenever it knows more, so a part that is late tells what it
had seen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
WTRAIN = str(BIN / "wtrain")
PROGRAM = str(Path(__file__).with_name("waits.py"))
TICK = os.sysconf("SC_CLK_TCK")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Part:
    asks: str
    limit_s: float
    run: Callable[[Answer, float], None]


def write(answer: Answer) -> None:
    Path("answer.json").write_text(json.dumps(answer))


def said(*command: str, limit_s: float = 10.0) -> str:
    """Output of a command, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return (done.stdout or done.stderr).strip()


def machine(answer: Answer, _: float) -> None:
    """Device, driver, versions; a driver that hangs is why this has a deadline, too."""
    import torch

    answer["torch"], answer["cuda"] = torch.__version__, torch.version.cuda
    answer["kernel"] = os.uname().release
    answer["devices"] = [
        torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())
    ]
    if answer["devices"]:
        answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        answer["nvml"] = nvml()


def nvml() -> Any:
    """As wtrain reads it."""
    line = said(sys.executable, "-I", "-m", "watchdog_train.system.gpu", "--once", limit_s=30)
    try:
        return json.loads(line)
    except ValueError:
        return line[:500]


def start(kind: str, number: int = 0, world: int = 1) -> subprocess.Popen[bytes]:
    """A program that will not end by itself; its output goes where the part's goes."""
    ranks = {"RANK": str(number), "WORLD_SIZE": str(world)} if world > 1 else {}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    env = {**os.environ, **(ranks and {**ranks, **meeting})}
    return subprocess.Popen([sys.executable, PROGRAM, kind], env=env)


def wait_for(done: Callable[[], Any], limit_s: float) -> float | None:
    """Seconds until it was so; None: not in time."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.02)
    return round(time.monotonic() - began, 2)


def look(pid: int) -> Answer:
    """A process as wtrain sees it: CPU share over 3 s, state, call, stacks, devices."""
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(3)
    used = (_cpu_s(pid) - before) / (time.monotonic() - began)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError) as error:
        call = str(error)
    stack = said(str(BIN / "py-spy"), "dump", "--native", "--pid", str(pid), limit_s=20)
    return {
        "cpu_share": round(used, 3),
        "state": stat[0],
        "syscall": call,
        "stack": stack[:1500],
        "nvml": nvml(),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def waits(answer: Answer, _: float) -> None:
    """A wait for a kernel that does not end, under the three schedules of CUDA."""
    for kind in ("spin", "yield", "blocking"):
        process = start(kind)
        came = wait_for(lambda: Path("ready-0").exists() or process.poll() is not None, 25)  # noqa: B023
        answer[kind] = look(process.pid) if process.poll() is None and came else "not reached"
        process.kill()
        answer[f"{kind}_gone_s"] = wait_for(lambda: process.poll() is not None, 15)  # noqa: B023
        Path("ready-0").unlink(missing_ok=True)
        write(answer)


def nccl(answer: Answer, _: float) -> None:
    """Two ranks, of which one is dead, elsewhere, or in another collective."""
    import torch

    several = torch.cuda.device_count() > 1
    if not several:
        answer["nccl"] = "not possible with one GPU: NCCL refuses two ranks on one device"
    for backend in ("nccl", "gloo") if several else ("gloo",):
        for kind in ("mismatch", "dead", "loops"):
            answer[f"{backend}-{kind}"] = _two_ranks(f"{backend}-{kind}")
            write(answer)


def _two_ranks(kind: str) -> Any:
    ranks = [start(kind, number, 2) for number in (0, 1)]
    try:
        if wait_for(lambda: all(Path(f"ready-{n}").exists() for n in (0, 1)), 25) is None:
            return {"problem": "the ranks did not meet", "codes": [r.poll() for r in ranks]}
        time.sleep(2)
        codes = [rank.poll() for rank in ranks]
        seen = look(ranks[0].pid) if codes[0] is None else "not waiting"
        return {"codes": codes, "rank_0": seen}
    finally:
        for number, rank in enumerate(ranks):
            rank.kill()
            rank.wait(15)
            Path(f"ready-{number}").unlink(missing_ok=True)


def memory(answer: Answer, _: float) -> None:
    """How long 8 GiB stay after a kill, while a kernel runs."""
    for name in ("SIGTERM", "SIGKILL"):
        before = _used_bytes()
        process = start("holds")
        if wait_for(Path("ready-0").exists, 25) is None:
            answer[name] = "not reached"
        else:
            began = time.monotonic()
            process.send_signal(getattr(signal, name))
            gone_s = wait_for(lambda: process.poll() is not None, 15)  # noqa: B023
            free_s = wait_for(lambda: _used_bytes() < before + (1 << 30), 20)  # noqa: B023
            answer[name] = {
                "gone_s": gone_s,
                "free_s": None if free_s is None else round(time.monotonic() - began, 2),
            }
        process.kill()
        process.wait(15)
        Path("ready-0").unlink(missing_ok=True)
        write(answer)


def _used_bytes() -> int:
    """Of all devices: in a container the driver does not name our processes."""
    seen = nvml()
    devices = seen.get("devices", ()) if isinstance(seen, dict) else ()
    return sum(each.get("memory_used_bytes") or 0 for each in devices)


def supervised(
    kind: str, limit_s: float, ranks: int = 1, *, hard_s: float = 120, dumped: bool = False
) -> Answer:
    """What a run of wtrain said, and when; stopped after the limit.

    Args:
        kind: what of waits.py.
        limit_s: of the whole run.
        ranks: started by torchrun when there are more than one.
        hard_s: the limit from which a busy job is suspected; the default is 120 s.
        dumped: evidence is asked for once the ranks are where they hang, and the run stopped.
    """
    command = [sys.executable, PROGRAM, kind]
    if ranks > 1:
        command = [str(BIN / "torchrun"), f"--nproc-per-node={ranks}", PROGRAM, kind]
    dump = ""
    config = Path("wtrain.yaml")
    config.write_text(f"detection: {{learnt_hard_floor_s: {hard_s}}}\n")
    options = ("--config", str(config), "--max-restarts", "1")
    run = subprocess.Popen([WTRAIN, "run", *options, "--", *command])
    if dumped:
        wait_for(lambda: all(Path(f"ready-{n}").exists() for n in range(ranks)), limit_s / 2)
        time.sleep(3)
        dump = said(WTRAIN, "dump", limit_s=30)
    ended = wait_for(lambda: run.poll() is not None, 0 if dumped else limit_s)
    logs = sorted(
        Path().glob("wtrain-runs/*-*/events.jsonl"), key=lambda path: path.stat().st_mtime
    )
    lines = logs[-1].read_text().splitlines() if logs else []
    events = [json.loads(line) for line in lines]
    if ended is None:
        run.terminate()
        wait_for(lambda: run.poll() is not None, 25)
    return {
        "code": run.poll(),
        "suspected": _told(events, "suspected"),
        "stalls": _told(events, "stall_declared"),
        "noticed": _told(events, "noticed"),
        "families": [e["diagnosis"].get("family") for e in events if e["type"] == "diagnosed"],
        "dump": dump[:1500],
        "launched": len(_told(events, "attempt_launched")),
        "first_steps_s": [e["after_s"] for e in events if e["type"] == "first_step"],
    }


def _told(events: list[Answer], kind: str) -> list[Answer]:
    keys = ("basis", "kind", "age_s", "phase")
    return [{k: e[k] for k in keys if k in e} for e in events if e["type"] == kind]


def item(answer: Answer, limit_s: float) -> None:
    """`loss.item()` behind a kernel that does not end: suspected when, called what."""
    answer.update(supervised("item", limit_s - 30, hard_s=30))


def loader(answer: Answer, limit_s: float) -> None:
    """A DataLoader deadlock beside a busy GPU."""
    answer.update(supervised("loader", limit_s - 30, hard_s=30))


def healthy(answer: Answer, limit_s: float) -> None:
    """A training with saves and evaluations: anything suspected is a false alarm."""
    os.environ["GPU_STEPS"] = str(max(200, int(limit_s - 60) * 15))  # a step takes about 0.06 s
    answer.update(supervised("healthy", limit_s - 30))
    answer["false_alarms"] = len(answer["suspected"])


def compiles(answer: Answer, limit_s: float) -> None:
    """Compiling and autotuning are healthy silences."""
    os.environ["GPU_STEPS"] = "100"
    answer.update(supervised("compile", limit_s - 30))
    answer["false_alarms"] = len(answer["suspected"])


def cost(answer: Answer, _: float) -> None:
    """A step on real kernels with and without wtrain."""
    os.environ["GPU_STEPS"] = "300"
    seconds: dict[str, float] = {}
    for name, command in (("alone", []), ("watched", [WTRAIN, "run", "--"])):
        said(*command, sys.executable, PROGRAM, "cost", limit_s=30)
        seconds[name] = float(Path("seconds").read_text())
        Path("seconds").unlink()
        answer.update(seconds)
        write(answer)
    answer["ratio"] = round(seconds["watched"] / seconds["alone"], 4)


def server(answer: Answer, limit_s: float) -> None:
    """Counters of torch's worker server and Flight Recorder while rank 1 is elsewhere."""
    import torch

    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    answer["backend"] = backend
    answer.update(supervised(f"{backend}-loops", limit_s - 30, ranks=2, dumped=True))
    found = [
        json.loads(path.read_text()) for path in Path().glob("wtrain-runs/*-*/**/flight-recorder/*")
    ]
    answer["recorders"] = [json.dumps(each)[:1000] for each in found]


PARTS = {
    "waits": Part("CPU share and stack of a CUDA wait: spin, yield, blocking", 60, waits),
    "nccl": Part("mismatch, dead rank, rank elsewhere: NCCL, gloo on GPU tensors", 60, nccl),
    "memory": Part("memory after SIGTERM and SIGKILL", 40, memory),
    "item": Part("loss.item() behind a kernel that does not end", 90, item),
    "loader": Part("a DataLoader deadlock beside a busy GPU", 70, loader),
    "server": Part("worker server and Flight Recorder of two ranks", 50, server),
    "cost": Part("a step on real kernels, with and without wtrain", 30, cost),
    "compile": Part("compiling and autotuning: suspected or not", 50, compiles),
    "healthy": Part(
        "a healthy training: suspected or not; longer where time is left", 240, healthy
    ),
}


def main() -> None:
    name, limit_s = sys.argv[1], float(sys.argv[2])
    answer: Answer = {}
    run = machine if name == "machine" else PARTS[name].run
    try:
        run(answer, limit_s)
    finally:
        write(answer)


if __name__ == "__main__":
    main()
