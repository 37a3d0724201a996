"""Planning: what two models, their caches and their passes need, against what is free.

Reads headers only; knows nothing of running engines or HTTP.
"""
