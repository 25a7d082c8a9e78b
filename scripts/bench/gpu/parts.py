"""What scripts/gpu asks a device: each part runs alone, `python parts.py NAME SECONDS`.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).with_name("waits.py"))
WTRAIN = (sys.executable, "-m", "watchdog_train")
_OTHER = (sys.executable, str(Path(__file__).with_name("short_limits.py")))
SUSPECTS = (*_OTHER, "300", "60", "20")
"""wtrain that suspects a busy job after 20 s instead of 2 min."""
SHORT = (*_OTHER, "40", "5", "120")
"""wtrain with 40 s for the 5 minutes of a wait for GPUs, and a stack sample every 5 s."""
SCHEDULES = ("spin", "yield", "blocking")
BACKENDS = {"nccl", "gloo"}
KINDS = ("mismatch", "dead", "loops")
CRASHES = {"forked": "fork-cuda-init", "full": "cuda-oom", "assertion": "device-side assert"}
"""What the summary of each must say."""
TICK = os.sysconf("SC_CLK_TCK")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Part:
    asks: str
    limit_s: float
    run: Callable[[Answer, float], None]
    beside: str = ""
    """Runs at the same time as this part."""


def write(answer: Answer) -> None:
    new = Path("answer.new")
    new.write_text(json.dumps(answer))
    new.replace("answer.json")


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

    answer["python"], answer["kernel"] = sys.version.split()[0], os.uname().release
    answer["torch"], answer["cuda"] = torch.__version__, torch.version.cuda
    answer["devices"] = [
        torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())
    ]
    if answer["devices"]:
        answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    write(answer)
    from watchdog_train.evidence import pyspy

    answer["py-spy"] = said(pyspy.find() or pyspy.NAME, "--version")
    answer["wtrain"] = said(*WTRAIN, "--version", limit_s=30)
    write(answer)
    answer["nvml"] = nvml()


def nvml() -> Any:
    """As wtrain reads it."""
    import msgspec

    from watchdog_train.system.gpu import Looker

    try:
        import pynvml

        return msgspec.to_builtins(Looker(pynvml).reading())
    except Exception as error:  # noqa: BLE001 - no library, no driver
        return {"problem": f"{type(error).__name__}: {error}", "devices": []}


def start(
    kind: str,
    rank: int = 0,
    world: int = 1,
    port: int = 0,
    *,
    name: str = "",
    under: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """A program that will not end by itself, in a folder named after it."""
    folder = Path(name or kind)
    folder.mkdir(exist_ok=True)
    env = dict(os.environ)
    if world > 1:
        env.update(RANK=str(rank), WORLD_SIZE=str(world))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # newer NCCL: two ranks on one device
    with (folder / f"out-{rank}").open("wb") as out:
        command = [*under, sys.executable, PROGRAM, kind]
        return subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)


def wait_for(done: Callable[[], Any], limit_s: float) -> float | None:
    """Seconds until it was so; None: not in time."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.02)
    return round(time.monotonic() - began, 2)


def reached(kind: str, processes: Iterable[subprocess.Popen[bytes]], limit_s: float) -> bool:
    """Whether all are ready; not waited for once one has ended."""
    ranks = list(enumerate(processes))
    marks = [Path(kind, f"ready-{rank}") for rank, _ in ranks]
    wait_for(
        lambda: all(m.exists() for m in marks) or any(p.poll() is not None for _, p in ranks),
        limit_s,
    )
    return all(mark.exists() for mark in marks)


def look(pid: int) -> Answer:
    """A process as wtrain sees it: CPU share over 3 s, state, call, stack, devices."""
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(3)
    used = (_cpu_s(pid) - before) / (time.monotonic() - began)
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError) as error:
        call = str(error)
    from watchdog_train.evidence import pyspy

    dump = (pyspy.find() or pyspy.NAME, "dump", "--pid", str(pid))
    began = time.monotonic()
    stacks = said(*dump, "--native", limit_s=20)  # it reads the symbols of all libraries
    took_s = round(time.monotonic() - began, 1)
    if "MainThread" not in stacks:
        stacks += "\n\n" + said(*dump, limit_s=5)
    blocks = stacks.split("\n\n")
    return {
        "cpu_share": round(used, 3),
        "state": _stat(pid)[0],
        "syscall": call,
        "stack": next((one for one in blocks if '"MainThread"' in one), stacks)[:1500],
        "stack_s": took_s,
        "nvml": nvml(),
    }


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICK


def waits(answer: Answer, limit_s: float) -> None:
    """A wait for a kernel that does not end, under the three schedules of CUDA."""
    started = {kind: start(kind) for kind in SCHEDULES}
    until = time.monotonic() + limit_s - 25
    for kind, process in started.items():
        reached(kind, [process], until - time.monotonic())
    answer.update(_looks({kind: (process,) for kind, process in started.items()}))
    write(answer)
    for kind, process in started.items():
        process.kill()
        answer[f"{kind}_gone_s"] = wait_for(lambda: process.poll() is not None, 10)  # noqa: B023


def _looks(programs: Mapping[str, Sequence[subprocess.Popen[bytes]]]) -> Answer:
    """At the first rank of each, all at the same time."""

    def one(name: str) -> Answer:
        first = programs[name][0]
        there = Path(name, "ready-0").exists() and first.poll() is None
        return look(first.pid) if there else _absent(name, first)

    with ThreadPoolExecutor() as pool:
        return dict(zip(programs, pool.map(one, programs), strict=True))


def _absent(name: str, process: subprocess.Popen[bytes]) -> Answer:
    """Why it is not where it should be: late, or the end of its output."""
    if process.poll() is None:
        return {"late": True}
    return {"ended": process.poll(), "output": Path(name, "out-0").read_text("utf-8")[-600:]}


def nccl(answer: Answer, limit_s: float) -> None:
    """Two ranks, of which one is dead, elsewhere, or in another collective."""
    backends = _backends()
    for backend in backends:
        pairs = {
            f"{backend}-{kind}": [start(f"{backend}-{kind}", rank, 2, _port(at)) for rank in (0, 1)]
            for at, kind in enumerate(KINDS)
        }
        until = time.monotonic() + 0.6 * limit_s / len(backends)
        for name, pair in pairs.items():
            reached(name, pair, until - time.monotonic())
        time.sleep(2)
        met = {name: reached(name, pair, 0) for name, pair in pairs.items()}
        codes = {name: [rank.poll() for rank in pair] for name, pair in pairs.items()}
        for name, seen in _looks(pairs).items():
            answer[name] = {"met": met[name], "codes": codes[name], "rank_0": seen}
        write(answer)
        for rank in (each for ranks in pairs.values() for each in ranks):
            rank.kill()
            wait_for(lambda: rank.poll() is not None, 5)  # noqa: B023


def _backends() -> tuple[str, ...]:
    """Without a device both would be gloo."""
    import torch

    return ("nccl", "gloo") if torch.cuda.is_available() else ("gloo",)


def _port(at: int) -> int:
    return 20000 + (os.getpid() * 7 + at) % 20000


def memory(answer: Answer, limit_s: float) -> None:
    """How long 8 GiB stay after each way to kill, while a kernel runs."""
    ways = {"SIGTERM": (), "SIGKILL": (), "SIGSTOP SIGKILL": (), "wtrain": (*WTRAIN, "run", "--")}
    held = {name: start("holds", name=name, under=under) for name, under in ways.items()}
    until = time.monotonic() + limit_s / 2
    there = {
        name: reached(name, [process], until - time.monotonic()) for name, process in held.items()
    }
    for name, process in held.items():
        before, began = _used_bytes(), time.monotonic()
        if not there[name]:
            answer[name] = _absent(name, process)
            continue
        for each in ("SIGTERM" if ways[name] else name).split():
            process.send_signal(getattr(signal, each))
        gone_s = wait_for(lambda: process.poll() is not None, 15)  # noqa: B023
        free = wait_for(lambda: before - _used_bytes() > 7 << 30, 10 if before else 0)  # noqa: B023
        free_s = None if free is None else round(time.monotonic() - began, 2)
        answer[name] = {"gone_s": gone_s, "free_s": free_s}
        write(answer)


def _used_bytes() -> int:
    """Of all devices: in a container the driver does not name our processes."""
    return sum(each.get("memory_used_bytes") or 0 for each in nvml()["devices"])


def supervised(
    kind: str,
    limit_s: float,
    *,
    ranks: int = 1,
    until: Iterable[str] = ("stall_explained", "evidence_collected"),
    dumped: bool = False,
    wtrain: Sequence[str] = WTRAIN,
) -> Answer:
    """What a run of wtrain said, and when; stopped after one of these events, or the limit.

    Args:
        kind: what of waits.py.
        limit_s: of the whole run.
        ranks: of torchrun, when there are more than one.
        until: types of events.
        dumped: evidence is asked for once the ranks are where they hang, and the run stopped.
        wtrain: how it is started.
    """
    command = [sys.executable, PROGRAM, kind]
    if dumped:
        options = ["--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, PROGRAM, kind]
    folder = Path(kind)
    folder.mkdir()
    (folder / "wtrain.yaml").write_text("detection:\n  gpu: 'on'\n")
    argv = [*wtrain, "run", "--config", "wtrain.yaml", "--max-restarts", "1", "--", *command]
    run = subprocess.Popen(argv, cwd=folder)
    dump = ""
    if dumped:
        marks = [folder / f"ready-{rank}" for rank in range(ranks)]
        wait_for(lambda: all(m.exists() for m in marks) or run.poll() is not None, limit_s / 2)
        time.sleep(3)
        which = next(folder.glob("wtrain-runs/*-*"), folder)
        dump = said(*WTRAIN, "dump", str(which), limit_s=40)
    else:
        wait_for(lambda: run.poll() is not None or _told(_events(folder), *until), limit_s)
    if run.poll() is None:
        run.terminate()
        wait_for(lambda: run.poll() is not None, 25)
    events = _events(folder)
    hung = (folder / "ready-0").stat().st_mtime if (folder / "ready-0").exists() else None
    suspected = _told(events, "suspected")
    return {
        "code": run.poll(),
        "suspected": suspected,
        "suspected_after_s": [round(e["t"] - hung, 1) for e in suspected] if hung else [],
        "stalls": _told(events, "stall_declared"),
        "noticed": _told(events, "noticed"),
        "explained": [
            path.read_text()[:2500] for path in sorted(folder.glob("wtrain-runs/*-*/**/SUMMARY.md"))
        ][:3],
        "dump": dump[:1500],
        "launched": len(_told(events, "attempt_launched")),
        "first_steps_s": [e["after_s"] for e in events if e["type"] == "first_step"],
    }


def _events(folder: Path) -> list[Answer]:
    lines = [
        line
        for path in folder.glob("wtrain-runs/*-*/events.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _told(events: list[Answer], *kinds: str) -> list[Answer]:
    keys = ("t", "basis", "kind", "age_s", "phase")
    return [{k: e[k] for k in keys if k in e} for e in events if e["type"] in kinds][:20]


def item(answer: Answer, limit_s: float) -> None:
    """`loss.item()` behind a kernel that does not end: suspected when, called what."""
    answer.update(supervised("item", limit_s - 30, wtrain=SUSPECTS))


def endless(answer: Answer, limit_s: float) -> None:
    """The same to its end: a stall, killed, its memory free, restarted, finished."""
    os.environ["GPU_SECONDS"] = "35"
    before = _used_bytes()
    answer.update(supervised("endless", limit_s - 30, until=(), wtrain=SHORT))
    answer["left_bytes"] = _used_bytes() - before


def bound(answer: Answer, limit_s: float) -> None:
    """A training that waits for its data most of the time, at low power: no stall."""
    os.environ["GPU_SECONDS"] = str(min(80.0, max(5.0, limit_s - 60)))
    answer.update(supervised("bound", limit_s - 30, until=(), wtrain=SHORT))


def loader(answer: Answer, limit_s: float) -> None:
    """A DataLoader deadlock beside a busy GPU."""
    answer.update(supervised("loader", limit_s - 30, wtrain=SUSPECTS))


def healthy(answer: Answer, limit_s: float) -> None:
    """A training with saves and evaluations: anything suspected is a false alarm."""
    os.environ["GPU_SECONDS"] = str(min(240.0, max(5.0, limit_s - 60)))
    answer.update(supervised("healthy", limit_s - 30, until=()))
    answer["false_alarms"] = len(answer["suspected"])


def compiles(answer: Answer, limit_s: float) -> None:
    """Compiling and autotuning are healthy silences."""
    os.environ["GPU_SECONDS"] = "5"  # after its first step
    answer.update(supervised("compile", limit_s - 30, until=()))
    answer["false_alarms"] = len(answer["suspected"])


def cost(answer: Answer, limit_s: float) -> None:
    """A step on real kernels with and without wtrain."""
    for name, under in (("alone", ()), ("watched", (*WTRAIN, "run", "--"))):
        answer["output"] = said(*under, sys.executable, PROGRAM, "cost", limit_s=limit_s)[-600:]
        answer[f"{name}_us"] = round(1e6 * float(Path("seconds").read_text()), 1)
        Path("seconds").unlink()
        write(answer)
    answer["ratio"] = round(answer["watched_us"] / answer["alone_us"], 4)


def server(answer: Answer, limit_s: float) -> None:
    """Counters of torch's worker server and Flight Recorder while the last rank is elsewhere."""
    import torch

    from watchdog_train.client.hooks.distributed import is_tried_with

    # One rank alone has no server: nothing waits for it.
    backends = [each for each in _backends() if each == "gloo" or torch.cuda.device_count() > 1]
    for backend in backends:
        kind = f"{backend}-loops"
        answer[backend] = supervised(kind, limit_s / len(backends) - 10, ranks=2, dumped=True)
        found = sorted(Path(kind).glob("wtrain-runs/*-*/**/flight-recorder/*"))
        if is_tried_with(torch.__version__):
            answer[backend]["recorders"] = [path.read_text()[:1000] for path in found]
        write(answer)


def crashes(answer: Answer, limit_s: float) -> None:
    """Real messages of CUDA: what is named, and whether the restart passes."""
    os.environ["GPU_SECONDS"] = "12"
    for kind in CRASHES:
        answer[kind] = supervised(kind, limit_s / len(CRASHES) - 5, until=())
        write(answer)


PARTS = {
    "waits": Part("CPU share and stack of a CUDA wait: spin, yield, blocking", 60, waits),
    "nccl": Part("mismatch, dead rank, rank elsewhere: NCCL, gloo on GPU tensors", 90, nccl),
    "server": Part("worker server and Flight Recorder, NCCL and gloo", 90, server, beside="nccl"),
    "memory": Part("memory after SIGTERM, SIGKILL, a stop, wtrain's kill", 60, memory),
    "item": Part("loss.item() behind a kernel that does not end", 80, item),
    "endless": Part("the same with short limits: stall, kill, restart, end", 170, endless),
    "bound": Part("a data-bound training at low power, with short limits", 130, bound),
    "loader": Part("a DataLoader deadlock beside a busy GPU", 80, loader),
    "cost": Part("a step on real kernels, with and without wtrain", 60, cost),
    "crashes": Part("CUDA after a fork, no memory, an assertion: what is named", 150, crashes),
    "compile": Part("compiling and autotuning: suspected or not", 150, compiles),
    "healthy": Part("4 minutes of healthy training: suspected or not", 310, healthy),
}


@dataclass(frozen=True)
class Claim:
    """What the documentation says, and whether an answer agrees; an answer without it: unknown."""

    part: str
    says: str
    agrees: Callable[[Answer], bool]


def _spins(seen: Answer) -> bool:
    """At full utilisation below the share of power from which on a GPU counts as working."""
    from watchdog_train.core.model.gpu import FLAT_UTIL, IDLE_POWER_SHARE

    return any(
        each["util"] >= FLAT_UTIL and each["power_w"] <= IDLE_POWER_SHARE * each["power_limit_w"]
        for each in seen["nvml"]["devices"]
    )


def _refuses(pairs: list[Answer]) -> bool:
    if any("Duplicate GPU" in str(pair) for pair in pairs):
        return True
    if any(pair["met"] for pair in pairs):
        return False
    raise KeyError("neither met nor refused")


CLAIMS = (
    Claim(
        "waits",
        "how-it-decides.md: a rank that waits for a GPU may keep a core busy (spin, yield)",
        lambda a: all(a[kind]["cpu_share"] > 0.5 for kind in ("spin", "yield")),
    ),
    Claim("waits", "gpu.md: with blocking it sleeps", lambda a: a["blocking"]["cpu_share"] < 0.1),
    Claim(
        "waits",
        "gpu.md: native stacks name the wait (…Synchronize)",
        lambda a: all("ynchronize" in a[kind]["stack"] for kind in SCHEDULES),
    ),
    Claim(
        "waits",
        "how-it-decides.md: a GPU that only spins is at 100 % below 25 % of its power limit",
        lambda a: _spins(a["spin"]),
    ),
    Claim(
        "nccl",
        "gpu.md: NCCL refuses two ranks on one device",
        lambda a: _refuses([a[f"nccl-{kind}"] for kind in KINDS]),
    ),
    Claim(
        "nccl",
        "symptoms.md: the rank beside a rank that loops stays in its collective",
        lambda a: a["gloo-loops"]["codes"] == [None, None],
    ),
    Claim(
        "memory",
        "gpu.md: memory is free 8 s after a kill",
        lambda a: all((way["free_s"] or 9) < 8 for way in a.values() if isinstance(way, dict)),
    ),
    Claim(
        "item",
        "how-it-decides.md: before 5 min a busy wait for a GPU is suspected and said, not killed",
        lambda a: bool(a["suspected"]) and not a["stalls"],
    ),
    Claim(
        "endless",
        "how-it-decides.md: ranks that only wait for their GPUs are a stall",
        lambda a: [stall["basis"] for stall in a["stalls"]] == ["device-wait"] and a["code"] == 0,
    ),
    Claim(
        "endless",
        "gpu.md: the stall names the call and the GPU, and leaves no memory behind",
        lambda a: "ynchronize" in a["explained"][0] and a["left_bytes"] < 1 << 30,
    ),
    Claim("bound", "reliability.md: no false alarm", lambda a: not a["stalls"]),
    Claim(
        "loader",
        "how-it-decides.md: asleep beside a GPU that only spins is suspected",
        lambda a: bool(a["suspected"]),
    ),
    Claim(
        "server",
        "gpu.md: Flight Recorders of all ranks are read",
        lambda a: all(len(a[each]["recorders"]) == 2 for each in a.keys() & BACKENDS),
    ),
    Claim("cost", "performance.md: the hooks of a step take 2 us", lambda a: a["ratio"] < 1.03),
    Claim(
        "crashes",
        "families.md: CUDA after a fork is named, and the restart without workers passes",
        lambda a: "fork-cuda-init" in a["forked"]["explained"][0] and a["forked"]["code"] == 0,
    ),
    Claim(
        "crashes",
        "families.md: a full GPU is named; an assertion on the device is shown as it is",
        lambda a: all(CRASHES[kind] in a[kind]["explained"][0] for kind in CRASHES),
    ),
    Claim("compile", "gpu.md: compiling is no stall", lambda a: not a["false_alarms"]),
    Claim("healthy", "reliability.md: no false alarm", lambda a: not a["false_alarms"]),
)


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
