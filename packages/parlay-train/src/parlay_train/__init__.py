"""Make a drafter for a target out of nothing but the target: the verb `parlay train`.

The target writes text, a small model learns its distributions, and the result is a GGUF.
"""
