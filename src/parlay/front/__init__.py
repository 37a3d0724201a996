"""The front: HTTP, keys, queue, doors, figures and life cycle, in a process without llama.cpp.

Asks backends; knows no tokens and no models.
"""
