"""Delegates, resolvers and scans of the CDC endpoint. Pure."""
