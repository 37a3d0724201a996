"""Control: how far to bet, decided from measured time and acceptance.

Never sees text; imports neither llama.cpp nor HTTP.
"""
