"""The runtime: sequences, the scheduler's step, slots, and the one thread that owns the models.

Knows nothing of HTTP or the command line.
"""
