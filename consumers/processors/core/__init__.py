"""Pure logic of the processors: no socket, clock, thread or client library."""
