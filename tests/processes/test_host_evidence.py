"""What is told of the machine around a training: the kernel log, memory, GPUs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchdog_train.cli.doctor import answer, described, reading_of
from watchdog_train.evidence import kernel_log
from watchdog_train.system import cgroup, current

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


def record(at_s: float, text: str) -> str:
    return f"6,{int(at_s)},{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=x\n"


def kept(tmp_path: Path, since: float, *records: str) -> tuple[str, ...]:
    """A file gives all records in one read, a device one at a time."""
    found: list[str] = []
    for number, text in enumerate(records):
        path = tmp_path / str(number)
        path.write_text(text)
        found += kernel_log.read(since, str(path))[0]
    return tuple(found)


OOM = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB"


def test_only_what_matters_and_is_new_is_kept(tmp_path):
    """An old kill, and the chatter of drivers, say nothing of this training."""
    lines = kept(
        tmp_path,
        100.0,
        record(99.0, OOM),
        record(101.0, "usb 1-1: new device"),
        record(
            102.0, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus. token=abcdef123"
        ),
        "no record at all",
    )
    assert lines == (
        "[102.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus. token=[removed]",
    )


XID = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
OTHERS = "[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=99, name=python, MMU fault"
SILENT, BACK = "[1.0] nfs: server big not responding, timed out", "[2.0] nfs: server big OK"


@pytest.mark.parametrize(
    ("lines", "pids", "uses_gpu", "counts"),
    [
        ([OOM], {7}, False, ()),
        ([OOM], {4242}, False, (OOM,)),
        ([XID, OTHERS], {7}, False, ()),
        ([XID, OTHERS], {7}, True, (XID,)),
        ([SILENT, BACK], (), False, ()),
        ([SILENT, BACK, SILENT], (), False, (SILENT,)),
    ],
    ids=["other's kill", "our kill", "no GPU", "our GPU", "answers again", "silent again"],
)
def test_only_lines_about_this_training_are_evidence(lines, pids, uses_gpu, counts):
    """On a shared machine others run out of memory, and use other GPUs."""
    found = kernel_log.evidence(lines, pids, uses_gpu=uses_gpu)
    assert [(log.source, log.lines) for log in found] == (
        [("kernel log", counts)] if counts else []
    )


def test_no_right_to_read_it_is_said(tmp_path):
    """The reason stays in host.json."""
    lines, problem = kernel_log.read(None, str(tmp_path / "none"))
    assert (lines, "may not be read" in problem) == ((), True)


def test_the_kernels_clock_of_a_process():
    """Our own start lies behind us, by less than the machine's uptime."""
    who = current().identity(os.getpid())
    since = kernel_log.started_at([who.start])
    assert 0 < time.monotonic() - since < time.monotonic() + 1


def test_memory_of_the_container_is_told_in_bytes():
    """Used is a number wherever there is a memory cgroup; no limit is None, not a huge number."""
    found = cgroup.cgroup_memory()
    if found is None:
        pytest.skip("no memory cgroup here")
    assert found["used_bytes"] > 1 << 20
    assert found["limit_bytes"] is None or found["limit_bytes"] < 1 << 62


def test_a_look_at_gpus_that_hangs_is_ended_in_time():
    """A driver without its GPU never answers."""
    started = time.monotonic()
    done = answer([sys.executable, "-c", "import time; time.sleep(600)"], 0.3)
    (check,) = described(reading_of(done), current())
    assert "no answer" in check.says
    assert time.monotonic() - started < 5


def test_a_look_at_gpus_tells_devices():
    """One reading as JSON becomes a line a device; anything else is a problem in words."""
    code = 'print(\'{"devices": [{"index": 0, "name": "H100"}]}\')'
    (check,) = described(reading_of(answer([sys.executable, "-c", code], 20.0)), current())
    assert (check.name, check.says) == ("GPU 0", "H100")
    nothing = reading_of(answer([sys.executable, "-c", "print(9)"], 20.0))
    assert nothing.problem == "NVML told nothing"


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"6,1,999999999,-;", b"6,1,99999999999999999,"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_any_record_is_no_exception(tmp_path, content, head):
    """What the kernel prints may hold names that a training chose."""
    path = tmp_path / "kmsg"
    path.write_bytes(head + content)
    lines, _ = kernel_log.read(0.0, str(path))
    kernel_log.evidence(lines, {1}, uses_gpu=True)
