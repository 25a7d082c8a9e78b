"""Recorded samples of a run: written a line a poll, read back, and judged again."""
