"""A job of several machines or tasks: one supervisor leads, and the others are its agents."""
