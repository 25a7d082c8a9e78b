"""A campaign of random faults over real supervised trainings; scripts/chaos runs it.

A case is one training, one fault at one moment, bystanders beside it, and checks at its end. What
a case is follows from (seed, number) alone, so any of them can be run again by itself; when exactly
a fault strikes still depends on the machine.
"""
