"""Processors: a changefeed's rows from its topic into a database or a storage."""
