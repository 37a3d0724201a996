"""What caches still hold of earlier texts: slots, conversations in RAM, the price of a copy.

Knows tokens and lengths; nothing of drafts.
"""
