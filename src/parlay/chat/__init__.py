"""Chat: conversations to text and tokens, answers back to what a client reads.

Knows templates and forms; knows no engine.
"""
