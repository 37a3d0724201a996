"""The HTTP server: OpenAI's routes, streaming, metrics, the request log.

Knows the runtime through the engine only; one thread owns the models, this package talks to it.
"""
