"""A real Slurm of two nodes on this machine, and jobs on it."""
