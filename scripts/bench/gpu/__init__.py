"""The parts of scripts/gpu."""
