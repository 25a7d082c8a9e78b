"""ROOM 11: pure renderers, from state and events to terminal text, JSON and HTML."""
