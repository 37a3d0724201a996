"""Pure decoding: drafts, verdicts, rounds, sampling, verification, stop rules and counts.

Knows neither llama.cpp nor HTTP: logits come in as numpy rows, tokens go out as integers.
"""
