"""Results: the record and its schema, submissions, the community's map, pages.

They know samples and statistics; they run nothing and load no model.
"""
