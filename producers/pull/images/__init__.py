"""Scans of table images: their threads, calls and records."""
