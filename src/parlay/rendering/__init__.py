"""The same deployment on another engine: launch commands and files, made from the deployment file.

Starts nothing and asks nobody; what cannot be carried over is listed, never dropped.
"""
