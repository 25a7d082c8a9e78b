"""One checkpoint file that every save overwrites in place; killed in the middle of the second save.

What is left of it is torn, and there is no other: it resumes only from a copy that was kept. By
--resume the script is given the path; --own lets it open its own path, whatever it is told. With
--begins-again it is not torn, but fails once, and never loads anything.
"""

from __future__ import annotations

import argparse
import glob
import os
import signal
import time

from zoo import Training, once

WAIT_S = 60.0


class OneFile(Training):
    """Always the same name, as in many scripts."""

    def path(self, step: int) -> str:
        return os.path.join(self.out, "last.pt")


def train_until_there_is_a_copy(training: Training) -> None:
    """Steps that save nothing; without any the training would be a stall, and killed for it."""
    until = time.monotonic() + WAIT_S
    pattern = os.path.join(os.environ["WTRAIN_RUN_DIR"], "kept", "*", "last.pt")
    while not glob.glob(pattern) and time.monotonic() < until:
        training.train_step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--begins-again", action="store_true")
    args = parser.parse_args()
    training = OneFile(0.02)
    own = training.path(0)
    path = own if args.own and os.path.exists(own) else args.resume
    training.resume(None if args.begins_again else path)
    training.train(10)
    if args.begins_again and once("failed"):
        raise SystemExit(3)
    if not args.begins_again and once("killed-in-a-save"):
        train_until_there_is_a_copy(training)
        with open(training.path(10), "r+b") as file:
            file.truncate(1000)
        os.kill(os.getpid(), signal.SIGKILL)
    training.train(20)
    training.finish()


if __name__ == "__main__":
    main()
