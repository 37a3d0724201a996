"""OpenAI's routes: from a body to sequences for the worker, and back to JSON or a stream.

Knows the engine through its requests; counts and figures are kept elsewhere.
"""
