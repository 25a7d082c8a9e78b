"""What one poll tells that is worth an event or a word, though nothing has to be done about it."""
