"""Pure logic of the producers: no socket, clock, thread or client library."""
