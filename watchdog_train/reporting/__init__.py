"""Reads what a run has left and has the report room render it; writes the page."""
