"""Ends with code 0 without a single step, or (with an argument) after that many of 40 steps."""

from __future__ import annotations

import sys

from zoo import Training


def main() -> None:
    training = Training(0.02)
    training.train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print("nothing more to do", flush=True)


if __name__ == "__main__":
    main()
