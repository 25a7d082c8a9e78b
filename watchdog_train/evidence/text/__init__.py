"""Evidence from text: dumps of other tools, logs and process lists that somebody brings along."""
