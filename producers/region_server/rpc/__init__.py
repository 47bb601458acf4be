"""gRPC plumbing of the region server: messages, channels, TLS."""
