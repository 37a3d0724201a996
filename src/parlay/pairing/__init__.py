"""Pairing: which drafter goes with which target, by vocabulary, by record and by measurement.

Knows files and tokenizers; knows nothing of running engines or HTTP.
"""
