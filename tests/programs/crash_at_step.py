"""Crash at a step, in one of several ways; on the first attempt only, or on every one."""

from __future__ import annotations

import argparse
import os
import signal

from zoo import Training, once


def crash(how: str) -> None:
    if how == "exception":
        raise RuntimeError("planted failure")
    if how == "exit":
        print("giving up with code 9", flush=True)
        os._exit(9)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("exception", "exit", "kill", "segv"))
    parser.add_argument("--at", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--always", action="store_true")
    parser.add_argument("--resume")
    args = parser.parse_args()
    training = Training(0.02)
    training.resume(args.resume)
    training.train(args.at)
    if args.always or once("crashed-once"):
        crash(args.how)
    training.train(args.steps)
    training.finish()


if __name__ == "__main__":
    main()
