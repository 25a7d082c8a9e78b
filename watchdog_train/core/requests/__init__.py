"""What the training itself is asked for, to save or to save and end, and what it answers."""
