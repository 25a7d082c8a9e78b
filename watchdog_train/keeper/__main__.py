"""Imports the rest of the keeper, independent of the environment, and runs it.

It must stay this short: it is the one module of the keeper that is compiled at every start.
"""

import os
import sys

# Last, not first: nothing that is installed beside us can stand in for the standard library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from watchdog_train.keeper.attempt import main

if __name__ == "__main__":
    # Nothing waits in a buffer, and whoever waits for our end waits for the next attempt.
    os._exit(main(sys.argv[1]))
