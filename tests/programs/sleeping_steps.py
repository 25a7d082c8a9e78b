"""Healthy: every step waits long for something outside, without using the machine at all.

Only a budget learnt from the steps themselves can spare it.
"""

from __future__ import annotations

import argparse

from zoo import Training, ready


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleep-s", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    training = Training(args.sleep_s)
    ready()
    training.train(args.steps)
    training.finish()


if __name__ == "__main__":
    main()
