"""The command line: one verb per file, thin over the library.

Knows terminals and exit codes; decides nothing about decoding.
"""
