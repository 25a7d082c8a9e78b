"""Where the faults of the night get into the training: Python runs this file at every start.

Nothing is imported but when NIGHT_FAULTS is set, and nothing is planted but in a process that
imports the Trainer.
"""

import os

if os.environ.get("NIGHT_FAULTS"):
    import night_faults

    night_faults.begin()
