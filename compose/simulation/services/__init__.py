"""Sorter services in one process under seeded faults: assigned by the real plan, with grouped state and locks."""
