"""Exactness: which passes agree to the bit, probed and priced; who may share one.

Knows walks, classes and prices; nothing of requests.
"""
