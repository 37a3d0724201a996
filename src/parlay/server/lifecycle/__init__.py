"""A server from its start to its end: opening, warming up, watching over it, reloading, draining.

Knows processes and settings; knows no bodies.
"""
