"""Lands what was before the raw log began."""
