"""What is known before a start: the command line, its launcher, which task or node we are."""
