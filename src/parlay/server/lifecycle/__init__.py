"""A server from its start to its end: starting, warming up, monitoring, reloading, draining.

Knows processes and settings; knows no bodies.
"""
