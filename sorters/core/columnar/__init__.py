"""Kernels over byte columns: spans, numbers, decimals, times, JSON and text, many rows at once."""
