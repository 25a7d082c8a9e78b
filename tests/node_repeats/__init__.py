"""Faults at random moments of a job of two nodes; scripts/bench/node_repeats runs them.

What a case is follows from (seed, kind, number) alone; when exactly it strikes depends on the
machine, too.
"""
