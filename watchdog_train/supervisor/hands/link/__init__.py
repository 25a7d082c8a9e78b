"""Moves messages between a leader and its agents: bytes, which mean nothing here.

On one machine over a unix socket; between machines over ZeroMQ, in a process of its own that talks
to us over a socket in the same frames. Nothing waits, and nothing is raised but at the start. A
message comes once or, when a connection is lost, never; messages between two ends keep their order.
"""
