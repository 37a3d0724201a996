"""Live figures: what the server counts, measures and shows while it answers.

Reads what others do; decides nothing.
"""
