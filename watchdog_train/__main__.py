"""`python -m watchdog_train` is `wtrain`."""

from __future__ import annotations

from watchdog_train.cli.main import main

if __name__ == "__main__":
    main()
