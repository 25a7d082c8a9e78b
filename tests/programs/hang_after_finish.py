"""Hang after the training is done: an exit handler joins a thread that never ends."""

from __future__ import annotations

import threading

from zoo import Training, ready


def main() -> None:
    training = Training(0.05)
    training.train(40)
    training.finish()
    threading.Thread(target=threading.Event().wait).start()
    ready()


if __name__ == "__main__":
    main()
