"""open-protocol."""
