"""The benchmark: prompt suites, subjects, an interleaved runner, statistics.

It knows nothing of llama.cpp's C API: it asks the runtime or an endpoint for text, and measures.
"""
