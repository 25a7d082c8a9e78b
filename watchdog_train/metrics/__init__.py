"""Serves the numbers of a run to Prometheus, from a process of its own."""
