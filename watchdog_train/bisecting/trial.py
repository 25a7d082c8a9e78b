"""One trial in a process of its own: `python -m watchdog_train.bisecting.trial ORDER`.

A run like any other, but for the settings that only a trial has. Its own process, so that the one
that waits for it can end it, and a bug in one trial costs no other.
"""

from __future__ import annotations

import sys
from pathlib import Path

from watchdog_train.bisecting.settings import TRIAL_SETTINGS
from watchdog_train.config import load_policy
from watchdog_train.core.model import Value
from watchdog_train.errors import EXIT_OUR_BUG, WtrainError
from watchdog_train.remedies.catalogue import available
from watchdog_train.supervisor.start import start_run
from watchdog_train.whole_files import read_json

ORDER_CAP_BYTES = 1 << 20


class Order(Value, frozen=True, kw_only=True):
    """What to try."""

    settings: str
    """A file with the settings of the run."""
    command: tuple[str, ...]


def main(argv: list[str]) -> int:
    """Supervise the trial until it ends, or is stopped; the exit code is the run's."""
    order = read_json(Path(argv[0]), Order, cap_bytes=ORDER_CAP_BYTES)
    if order is None:
        print(f"the order cannot be read: {argv[0]}", file=sys.stderr)
        return EXIT_OUR_BUG
    try:
        policy = load_policy(Path(order.settings), None, {})
        session = start_run(
            policy, order.command, {**available(), **TRIAL_SETTINGS}, foreground=False
        )
    except WtrainError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    session.close_with_words()
    return session.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
