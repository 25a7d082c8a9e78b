"""The checkpoints of a run, and which are valid. Never unpickles, never writes into one."""
