"""Before a night: `wtrain doctor` tests this machine, `wtrain notify-test` sends a message.

Must not change anything: it stops what it starts, and removes what it writes.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import click
import msgspec

from watchdog_train.cli.options import config_option, json_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import load
from watchdog_train.config.presets import PRESETS, fitting
from watchdog_train.core.model import Value
from watchdog_train.core.model.gpu import GpuProcess, GpuReading
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.jobs import Finished, Job, run_all
from watchdog_train.notify import Message, names, refuse_unusable
from watchdog_train.notify.send import deliver
from watchdog_train.report.words import clean, size_text
from watchdog_train.system import current
from watchdog_train.system.file_systems import ROOM_BYTES
from watchdog_train.system.gpu import command, is_asked
from watchdog_train.system.protocol import ProcessSystem, stranger

EXIT_FAILURES = 1
WORDS = {"ok": "OK", "warning": "WARN", "failure": "FAIL", "unknown": "?"}
Status = Literal["ok", "warning", "failure", "unknown"]


class Check(Value):
    name: str
    status: Status
    says: str
    mend: str | None = None
    """How to fix it; None where nothing has to be done."""


GPU_S = 5.0
NEVER_RUN = {
    "linux": "GPUs, NCCL, MPS, several nodes, network file systems, musl, ARM",
    "darwin": "anything: macOS is written for, and tested by nobody",
    "win32": "anything: Windows is written for, and tested by nobody",
}
"""Not tested, by sys.platform; docs/platforms.md says the same."""
ATTACH_S = 15.0
"""For py-spy to read the stack of a process that is just starting, tried again and again."""
SMALL_SHM_BYTES = 1 << 30
"""Docker gives 64 MB; four workers that hand over batches of 100 MB fill that at once."""
FEW_FILES = 4096
LITTLE_DISK_BYTES = 10 << 30
NO_DISK_BYTES = 1 << 30
FEW_INODES = 10_000


def _check(name: str, holds: bool | None, says: str, ill: str | None, mend: str | None) -> Check:
    """OK with `says` if it holds; else a warning with `ill` (None: with `says`) and a fix."""
    if holds:
        return Check(name=name, status="ok", says=says)
    return Check(name=name, status="warning", says=ill or says, mend=mend)


def never_run(system: ProcessSystem) -> Check:
    """The first line: what is not tested on this platform."""
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    what = NEVER_RUN.get(sys.platform, "anything: this system is not known to us")
    tested = sys.platform == "linux" and platform.machine() == "x86_64"
    return Check(
        name="platform",
        status="ok" if tested and system.name == "linux" else "warning",
        says=f"{where}; nobody has run here: {what}",
        mend=None if tested else "start with --observe, and read docs/platforms.md",
    )


def preset() -> Check:
    name = fitting(sys.platform, platform.machine())
    use = "" if name == "default" else f" (wtrain run --preset {name} -- COMMAND)"
    return Check(name="preset", status="ok", says=f"{name}{use}: {PRESETS[name].text}")


def stacks() -> Check:
    """Dump the stack of a child process, as evidence does it."""
    binary = pyspy.find()
    inside = "stacks then come from inside the training, but not from one that holds the GIL"
    if binary is None:
        return Check(name="stacks", status="failure", says=inside, mend=pyspy.HINT_MISSING)
    code = "import time; time.sleep(60)"
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL)
    try:
        problem = _dump(binary, sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait(5)
    well = "py-spy reads the stack of another process"
    return _check("stacks", problem is None, well, f"py-spy cannot: {inside}", problem)


def answer(argv: Sequence[str], timeout_s: float, pid: int = 0) -> Finished:
    """A child's output within a time limit; one that hangs in a driver is left behind."""
    job = Job(pid=pid, argv=tuple(argv), timeout_s=timeout_s)
    (done,) = run_all(
        (job,),
        parallel=1,
        until=time.monotonic() + timeout_s,
        output_cap_bytes=1 << 20,
        directory=tempfile.gettempdir(),
        after=lambda _: None,
        still_safe=lambda _: None,
        meanwhile=lambda: None,
    )
    return done


def _dump(binary: str, pid: int) -> str | None:
    deadline = time.monotonic() + ATTACH_S
    problem = "py-spy has not answered in time"
    while (left_s := deadline - time.monotonic()) > 0:
        done = answer(pyspy.command(binary, pid, nonblocking=True), left_s, pid)
        if pyspy.parse(done.stdout, pid):
            return None
        problem = pyspy.reason(done)
        if "just starting" not in problem and "no such process" not in problem:
            return problem
        time.sleep(0.1)
    return problem


def processes(system: ProcessSystem) -> Iterator[Check]:
    """How surely processes are known and killed, and whether their signs of life are seen."""
    place = system.slot_directory("doctor")
    table = (
        (
            "orphans",
            system.become_subreaper(),
            "orphans of the training come home to its keeper (subreaper)",
            "orphans of the training are known only if they were seen before",
            "nothing here; wtrain clean shows what was recorded and is left",
        ),
        (
            "network",
            system.tcp_bytes((os.getpid(),)) is not None,
            "TCP bytes of the training are counted (sock_diag)",
            "TCP bytes cannot be counted: a slow download looks like silence for longer",
            "a container may need the module inet_diag of its host",
        ),
        (
            "heartbeats",
            place is not None,
            f"slots in {place.parent if place is not None else None}",
            "no private place in memory: slots go into the run directory",
            f"make {ROOM_BYTES >> 20} MB free in /dev/shm",
        ),
    )
    yield from (_check(*row) for row in table)
    yield _open_files()


def _open_files() -> Check:
    if sys.platform == "win32":
        return Check(name="open files", status="unknown", says="no such limit is told here")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < FEW_FILES
    says = f"{soft} files may be open (hard limit {hard})"
    most = min(hard, 65536) if hard > 0 else 65536
    mend = f"ulimit -n {most}: each worker of a DataLoader hands its batches over in files"
    return _check("open files", not few, says, None, mend)


def memory() -> Iterator[Check]:
    with suppress(OSError):
        shm = shutil.disk_usage("/dev/shm")  # noqa: S108
        says = f"{size_text(shm.total)} in /dev/shm, {size_text(shm.free)} free"
        mend = "docker run --shm-size=16g, or --ipc=host: workers pass batches through it"
        yield _check("shared memory", shm.total >= SMALL_SHM_BYTES, says, None, mend)


def disk(system: ProcessSystem, directory: Path) -> Check:
    name = f"disk of {directory}"
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        mend = "name the directory of the checkpoints with --checkpoints"
        return Check(name=name, status="failure", says=str(error.strerror), mend=mend)
    if system.on_network_file_system(directory):
        says = f"a network file system, {size_text(usage.free)} free; none was tested"
        return Check(name=name, status="warning", says=says, mend="keep --runs-dir on a local disk")
    inodes = _free_inodes(directory)
    says = f"{size_text(usage.free)} free" + (f", {inodes} files" if inodes is not None else "")
    mend = "a save that finds no room ends the training: delete, or choose another disk"
    few = inodes is not None and inodes < FEW_INODES
    if usage.free < NO_DISK_BYTES or inodes == 0:
        return Check(name=name, status="failure", says=says, mend=mend)
    return _check(name, usage.free >= LITTLE_DISK_BYTES and not few, says, None, mend)


def _free_inodes(directory: Path) -> int | None:
    if sys.platform != "win32":
        with suppress(OSError):
            found = os.statvfs(directory)
            return found.f_favail if found.f_files else None
    return None


MOST_NAMED = 8


def gpus(system: ProcessSystem) -> Iterator[Check]:
    """A line for each device that exists."""
    if is_asked():
        yield from described(reading_of(answer(command(once=True), GPU_S)), system)
    else:
        yield Check(name="GPU", status="ok", says="no NVIDIA GPU is seen; nothing is asked of any")


def reading_of(done: Finished) -> GpuReading:
    try:
        return msgspec.json.decode(done.stdout.partition("\n")[0], type=GpuReading)
    except (msgspec.DecodeError, RecursionError):
        return GpuReading(problem=f"NVML {done.problem or 'told nothing'}")


def described(found: GpuReading, system: ProcessSystem) -> Iterator[Check]:
    if found.problem:
        mend = "nvidia-smi tells more; without NVML a hang beside a busy GPU is called later"
        yield Check(name="GPU", status="warning", says=found.problem, mend=mend)
        return
    for device in found.devices:
        words = [device.name or "?"]
        used, total = device.memory_used_bytes, device.memory_total_bytes
        if used is not None and total:
            words.append(f"{size_text(used)} of {size_text(total)} in use")
        held = device.processes or ()
        if held and found.foreign_pids:
            words.append(f"{len(held)} processes, whose names a container does not tell")
        else:
            words += [_holder(process, system) for process in held[:MOST_NAMED]]
        mend = "a restart waits for memory that others hold: wtrain clean shows what is ours"
        yield _check(f"GPU {device.index}", not held, ", ".join(words), None, mend)


def _holder(process: GpuProcess, system: ProcessSystem) -> str:
    size = process.memory_bytes
    return stranger(system, process.pid) + (f" with {size_text(size)}" if size is not None else "")


def examine(system: ProcessSystem, directories: Sequence[Path]) -> Iterator[Check]:
    """All checks, as they are done; some take seconds. `directories`: where checkpoints go."""
    yield never_run(system)
    yield preset()
    yield stacks()
    yield from processes(system)
    yield from memory()
    for directory in directories:
        yield disk(system, directory)
    yield from gpus(system)


@click.command()
@click.option(
    "--checkpoints",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where checkpoints go.  [default: here]",
)
@json_option
def doctor(*, checkpoints: tuple[Path, ...], as_json: bool) -> None:
    """Try stacks, heartbeats, memory, disks and GPUs; nothing is changed.

    The first line names what is not tested on this platform. Each warning says how to fix it.
    Exit code 1 when something fails.
    """
    found: list[Check] = []
    for check in examine(current(), checkpoints or (Path.cwd(),)):
        found.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json(checks=found)
    if any(check.status == "failure" for check in found):
        sys.exit(EXIT_FAILURES)


def _print(check: Check) -> None:
    echo(f"{WORDS[check.status]:4}  {clean(check.name, 80)}: {clean(check.says, 600)}")
    if check.mend:
        echo(f"      {clean(check.mend, 400)}")


@click.command()
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send it there.  [default: that of the settings]  [may be repeated]",
)
@config_option()
def notify_test(urls: tuple[str, ...], config_file: Path | None) -> None:
    """Send a test message to every URL; exit code 75 when one was not reached."""
    chosen = urls or load(config_file).policy.notify.urls
    if not chosen:
        raise WtrainError(
            "no URL for notifications is set",
            hint="wtrain notify-test --notify URL, WTRAIN_NOTIFY, or notify.urls in wtrain.yaml",
            reference="notify-nobody",
        )
    refuse_unusable(chosen)
    message = Message(
        title="wtrain: test",
        message="This is a test. A stall, a restart and the end of a run would be reported here.",
        topics=("test",),
        run_id="",
    )
    with ThreadPoolExecutor(len(chosen)) as pool:
        failures = list(pool.map(lambda url: deliver(url, message), chosen))
    for name, why in zip(names(chosen), failures, strict=True):
        echo(f"{name}: sent" if why is None else f"{name}: NOT sent: {why}")
    sys.exit(0 if not any(failures) else EXIT_RETRY_ELSEWHERE)
