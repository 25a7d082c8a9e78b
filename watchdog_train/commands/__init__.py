"""Runs a user's own commands for events, in a process of its own with a deadline."""
