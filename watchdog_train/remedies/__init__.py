"""Safer settings as data: what each sets, what it costs, what it may break. Applies nothing."""
