"""Sends what a person should know, in a process of its own; URLs never get into the log."""
