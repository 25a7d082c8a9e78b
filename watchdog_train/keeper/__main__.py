"""Imports the rest of the keeper, independent of the environment, and runs it.

It must stay this short: it is the one module of the keeper that is compiled at every start.
"""

import os
import sys

# Last, not first: no package installed next to wtrain can replace the standard library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from watchdog_train.keeper.attempt import main

if __name__ == "__main__":
    # No buffer is unwritten, and the next attempt waits for our exit.
    os._exit(main(sys.argv[1]))
