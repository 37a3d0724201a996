"""The bets that can be made on one pass, and what each is worth in seconds.

Knows prices, chances and what may be lost; chooses nothing: the controller compares them.
"""
