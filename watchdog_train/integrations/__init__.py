"""Explicit callbacks for those who prefer them to wtrain's hooks."""
