"""What can be benchmarked: our own runtime, llama.cpp's server, any OpenAI-compatible endpoint.

Knows how each is started and asked; knows nothing of statistics.
"""
