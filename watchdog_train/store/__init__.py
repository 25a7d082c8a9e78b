"""Files of a run: its directory, its event log, who holds it, and the list of live runs."""
