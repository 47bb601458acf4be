"""Registrations of regions: their ranges, streams and errors, and how far a span is resolved."""
