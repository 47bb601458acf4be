"""Locks that hold a span's resolved ts back, and the unary calls that resolve them."""
