"""Encoders: mounted rows, DDL events and watermarks to messages of a sink protocol."""
