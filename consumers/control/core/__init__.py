"""Pure logic of the control plane: no socket, clock, thread or client library."""
