"""Which checkpoints there are, and which are whole. Never unpickles, never writes into one."""
