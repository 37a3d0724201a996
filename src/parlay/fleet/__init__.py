"""What batch does to the bet: machines simulated from measured prices, one or a thousand.

Pure and seeded; knows neither models nor HTTP. The scheduler it plays is the runtime's own.
"""
