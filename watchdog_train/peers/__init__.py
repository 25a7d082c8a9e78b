"""ROOM 13 - how the records of a job's tasks travel; what they mean is in core.job.peers."""
