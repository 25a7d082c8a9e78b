"""Not a hang: the training is stopped (SIGSTOP), as by a job-control key or another tool."""

from __future__ import annotations

import os
import signal

from zoo import Training, ready


def main() -> None:
    training = Training(0.05)
    training.train(20)
    ready()
    print("stopping myself", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    training.train(40)
    training.finish()


if __name__ == "__main__":
    main()
