"""The state of a run, and how each event changes it; nothing else ever does."""
