"""A whole night in a quarter of an hour: the play that scripts/night performs, and its checks."""
