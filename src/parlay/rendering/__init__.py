"""A deployment as files for where it is to run, and as other engines' commands.

Starts nothing and asks nobody; what cannot be carried over is listed, never dropped.
"""
