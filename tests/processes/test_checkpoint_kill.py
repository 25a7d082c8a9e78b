"""Saves that a real SIGKILL has cut, and saves that are being written while we look."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.checkpoint_samples import look
from tests.support import wait_until

SAVE_AND_STOP_HALFWAY = """
import sys, torch
class Slow:
    def __init__(self, file):
        self.file, self.written = file, 0
    def write(self, data):
        if self.written + len(data) > 300_000:
            self.file.flush()
            print("halfway", flush=True)
            sys.stdin.read()
        self.written += len(data)
        return self.file.write(data)
    def flush(self):
        self.file.flush()
state = {f"w{number}": torch.zeros(10_000) for number in range(20)}
torch.save(state, f"{sys.argv[1]}/ckpt_1.pt")
with open(f"{sys.argv[1]}/ckpt_2.pt", "wb") as file:
    torch.save(state, Slow(file))
"""


def test_a_save_cut_by_a_kill_is_partial_and_the_one_before_is_whole(tmp_path):
    """SIGKILL in the middle of torch.save: the newest is rejected, the older one chosen."""
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_AND_STOP_HALFWAY, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b"halfway\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    wait_until(lambda: (tmp_path / "ckpt_2.pt").stat().st_size > 0, 5, "a part was written")
    for level in ("quick", "full"):
        found = look(tmp_path, level=level)
        assert [(one.step, one.whole) for one in found] == [(2, False), (1, True)]
