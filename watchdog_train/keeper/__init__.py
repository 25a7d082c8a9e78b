"""The parent of one training: it pumps output into capped files and keeps the exit status.

One process per attempt, run as `python -I -S .../keeper/__main__.py <attempt folder>/launch.json`,
so that training survives the supervisor's death. It must import only this
room and the standard library, never stop draining the streams, and never wait on any child but by
its pid: a stolen status turns a failure into success.
"""

EXIT_AT_GATE = 127
"""Of a forked process whose keeper died before it started the training."""
