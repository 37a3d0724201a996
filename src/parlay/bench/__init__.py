"""`parlay bench`: whether speculation pays here, by measurement, and results that others can check.

Suites, subjects, the interleaved run, statistics, records, pages, the community's map.
"""
