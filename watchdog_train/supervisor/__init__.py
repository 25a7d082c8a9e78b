"""The shell around the core: observe, decide, perform, record."""
