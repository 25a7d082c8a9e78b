"""From facts to an explanation: who waits for whom, where that ends, and what is known about it.

May import `core` alone. Never in here: reading of files or processes, and sentences.
"""
