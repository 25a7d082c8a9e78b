"""A plain loop that cannot be asked: on SIGTERM or Ctrl-C it saves, which takes a while, and ends.

The file `saved-SIGNAL` is there when the save is complete.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from zoo import Training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-s", type=float, default=2.5, help="how long the save takes")
    args = parser.parse_args()
    training = Training(0.02)

    def save(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        time.sleep(args.save_s)
        Path(f"saved-{signal.Signals(number).name}").write_text(str(training.step))
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as Python itself does it
        signal.signal(signal.SIGINT, save)
    while True:
        training.train_step()
        print("step", training.step, flush=True)


if __name__ == "__main__":
    main()
