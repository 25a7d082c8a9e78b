"""One module per library, each with arm(module); a hook that fails, fails alone."""
