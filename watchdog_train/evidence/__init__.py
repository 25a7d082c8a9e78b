"""Collectors: what every process of a training does, from outside, each with a deadline."""
