"""The commands: parse, call, render, exit code. Nothing imports this room."""
