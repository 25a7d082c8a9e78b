"""The same crash under wtrain and under others that restart programs, by their default settings.

    python scripts/bench/peers.py [--runs 5]

A program ends with 1; measured is the time until the first line of its next start, with the time
from the command to its first start and the memory of all processes but its own beside it. torchrun
is that of this environment; ft_launcher of NVRx, supervisord and circus are installed once into
.venv-peers; one that cannot be installed or does not restart it is left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from measured import BIN, REPOSITORY, WTRAIN, Row, bare_environment, in_turn, machine, table

PROGRAM = """
import os, sys, time
times = open("times", "a+")
print(time.monotonic(), os.getpid(), file=times, flush=True)
times.seek(0)
if len(times.readlines()) == 1:
    time.sleep(2)
    print(time.monotonic(), os.getpid(), file=times, flush=True)
    os._exit(1)
time.sleep(60)
"""
FILES = {
    "supervisord.conf": f"""[supervisord]
nodaemon=true
logfile=/dev/null
logfile_maxbytes=0
[program:one]
command={sys.executable} program.py
""",
    "circus.ini": f"[watcher:one]\ncmd={sys.executable} program.py\n",
    "program.py": PROGRAM,
}
PEERS = REPOSITORY / ".venv-peers"
PACKAGES = ("supervisor", "circus", "nvidia-resiliency-ext", "defusedxml")
TORCHRUN = ["--max-restarts", "3", "--nproc-per-node", "1", "program.py"]
COMMANDS = {
    "wtrain": [WTRAIN, "run", "--", sys.executable, "program.py"],
    "torchrun": [str(BIN / "torchrun"), "--standalone", *TORCHRUN],
    "ft_launcher": [str(PEERS / "bin" / "ft_launcher"), *TORCHRUN],
    "supervisord": [str(PEERS / "bin" / "supervisord"), "-c", "supervisord.conf"],
    "circus": [str(PEERS / "bin" / "circusd"), "circus.ini"],
}
LIMIT_S = 60.0


def rows(runs: int) -> list[Row]:
    """Seconds of each, with wtrain's ratio to it."""
    _install()
    names = [name for name in COMMANDS if os.access(COMMANDS[name][0], os.X_OK)]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}

    def act(name: str) -> float:
        found[name].append(_once(COMMANDS[name]))
        return found[name][-1][0]

    taken = in_turn(runs, *(lambda name=name: act(name) for name in names))
    ours_s, table_rows = statistics.median(taken[0]), []
    for name, values in zip(names, taken, strict=True):
        _, begin_s, mib = (statistics.median(of) for of in zip(*found[name], strict=True))
        ratio = (
            ""
            if name == "wtrain"
            else f"wtrain takes {ours_s / statistics.median(values):.2g} times; "
        )
        note = f"{ratio}command to first start {begin_s:.2f} s; {mib:.0f} MiB"
        budget = 2.0 if name == "wtrain" else None
        table_rows.append(Row(f"crash to next start: {name}", values, "s", budget, note))
    return table_rows


def _install() -> None:
    python = PEERS / "bin" / "python"
    if python.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    pip = [python, "-m", "pip", "install", "-q", "--only-binary=:all:", "--no-deps"]
    needs = ("pyzmq", "tornado", "psutil")
    for package in (*PACKAGES, *needs):
        subprocess.run([*pip, package], check=False, stderr=subprocess.DEVNULL)
    for place in PEERS.glob("lib/*/site-packages"):
        (place / "torch.pth").write_text(f"{ours}\n")


def _once(command: list[str]) -> tuple[float, float, float]:
    """Seconds from the crash to the next start, and to the first one; MiB of the others."""
    with tempfile.TemporaryDirectory() as place:
        for name, text in FILES.items():
            Path(place, name).write_text(text)
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        began, mib = time.monotonic(), 0.0
        run = subprocess.Popen(
            command, cwd=place, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            lines: list[list[str]] = []
            while len(lines) < 3:
                if time.monotonic() > began + LIMIT_S:
                    raise SystemExit(f"{command[0]} has not started the program again")
                time.sleep(0.05)
                with suppress(OSError):
                    lines = [line.split() for line in Path(place, "times").read_text().splitlines()]
                if len(lines) == 1 and time.monotonic() > float(lines[0][0]) + 1.5:
                    mib = mib or _others_mib(run.pid, int(lines[0][1]))
        finally:
            mine = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
            run.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                run.wait(15)
            for process in [*mine, run]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            run.wait()
        first, crash, again = (float(line[0]) for line in lines)
        return again - crash, first - began, mib


def _others_mib(pid: int, program: int) -> float:
    """Resident memory of a tree without the program; shared libraries count in full."""
    everybody = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(one.memory_info().rss for one in everybody if one.pid != program) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    print(table(rows(options.runs)))


if __name__ == "__main__":
    main()
