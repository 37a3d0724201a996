"""What engines tell about speculation, in our words.

Pure: reads texts and objects that others fetched; knows no sockets and no clocks.
"""
