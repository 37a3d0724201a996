"""What passes cost on this machine: run shape by shape, timed, and kept as tables.

Knows models as passes; decides nothing.
"""
