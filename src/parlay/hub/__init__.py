"""Models by name: what a name means, which models this disk holds, how others are fetched.

Knows model files by their headers; loads none.
"""
