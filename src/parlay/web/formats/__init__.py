"""Other formats than chat completions, as translations of it: bodies in, deltas out.

Knows formats only; who answers, this server's engine or one behind the gateway, does not matter.
"""
