"""A run that is one task of several: who they are, what they tell and do together.

The three things they agree on: evidence everywhere before the first kill, one plan, one attempt.
"""
