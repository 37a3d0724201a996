"""The gateway: the server's own routes in front of other engines.

Asks OpenAI-compatible servers instead of a local engine; loads no model and knows no llama.cpp.
"""
