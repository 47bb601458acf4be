"""Cores of lake tables: which columns they have, what a commit writes, where a run goes on."""
