"""`wtrain bisect`: short supervised trials of a command, each with one thing changed."""
