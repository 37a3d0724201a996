"""What any server here shares: the application, keys, failures, streams, the request log, the page.

Knows HTTP and deployments; knows no engine, so that the gateway runs without llama.cpp.
"""
