"""A whole night in some minutes: the play that scripts/night performs, and its checks."""
