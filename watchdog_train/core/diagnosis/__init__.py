"""What is stuck, and why: stacks, logs, recorders and rules in, a diagnosis out.

Knows neither the state of the run nor what will be done about it.
"""
