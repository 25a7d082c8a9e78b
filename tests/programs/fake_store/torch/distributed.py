"""A store whose keys are files of the directory FAKE_STORE_AT; FAKE_STORE says what is wrong."""

import os
import time
from pathlib import Path


class TCPStore:
    def __init__(self, host, port, *, is_master, timeout, wait_for_workers):
        assert timeout.total_seconds() > 0
        assert not wait_for_workers
        self._at = Path(os.environ["FAKE_STORE_AT"])
        if is_master:
            self._at.mkdir(exist_ok=True)
        elif not self._at.is_dir():
            raise RuntimeError(f"The client socket has timed out: {host}:{port}")
        print("a word of a library")

    def set(self, key, value):
        _may_hang()
        path = self._at / key.replace("/", "_")
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").replace(path)

    def multi_get(self, keys):
        _may_hang()
        return [(self._at / key.replace("/", "_")).read_bytes() for key in keys]

    def wait(self, keys, _limit):
        for key in keys:
            if not (self._at / key.replace("/", "_")).exists():
                raise RuntimeError("wait timeout")


def _may_hang():
    if Path(os.environ["FAKE_STORE_AT"] + ".hangs").exists():
        time.sleep(600)
