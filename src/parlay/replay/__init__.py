"""Offline: controllers run over recordings and cost tables, beside rivals and an oracle.

Nothing here runs while an answer is made.
"""
