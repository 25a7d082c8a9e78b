"""Healthy: one save that takes long, because the disk is slow (written in small synced pieces)."""

from __future__ import annotations

import os
import time

from zoo import Training, ready

LONG_S = float(os.environ.get("LONG_S", "12"))


class SlowFile:
    """A file on a slow disk: about 200 kB/s reach it, whatever the writer wants."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), 20_000):
            self.file.write(view[begin : begin + 20_000])
            os.fsync(self.file.fileno())
            time.sleep(0.1)
        return len(view)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    torch = training.torch
    file = SlowFile("big.pt")
    torch.save({"weights": torch.zeros(int(LONG_S * 200_000 / 4))}, file)
    file.close()
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
