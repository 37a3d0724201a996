"""An engine in a process of its own: what it and the front say to each other, and the process.

Knows asks and what comes of them; knows no HTTP.
"""
