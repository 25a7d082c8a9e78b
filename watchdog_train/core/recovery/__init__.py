"""After a stall or a crash: the end of the tree, a checkpoint and settings, or no more attempts."""
