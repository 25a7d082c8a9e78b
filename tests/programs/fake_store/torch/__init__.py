"""Stands in for torch where only its store is wanted: loading the real one takes seconds."""

import os

if os.environ.get("FAKE_STORE") == "no torch":
    raise ImportError("No module named 'torch'")
