"""The only place that knows llama.cpp: library, models, contexts, vocabulary, rollback, files.

Knows nothing of drafts, rounds or requests.
"""
