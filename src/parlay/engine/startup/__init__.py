"""What is found out and loaded before an engine answers: settings, drafters, prices.

Knows files and the target; nothing of requests.
"""
