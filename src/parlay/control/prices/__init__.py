"""Prices: what passes and drafts take on this machine, by shape, and what follows from it.

Knows seconds and rows; nothing of what is drafted or chosen.
"""
