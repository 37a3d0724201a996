"""`parlay tune`: which drafter pays here, on these requests, by measurement within a time.

Knows candidates and the bench's statistics; the engine answers, the command line shows.
"""
