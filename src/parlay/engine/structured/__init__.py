"""Structured output: grammars as masks, and the guide that says when one applies.

Knows tokens and forms; nothing of HTTP or sampling.
"""
