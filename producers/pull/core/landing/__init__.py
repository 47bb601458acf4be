"""What was sent to the raw log, what is acknowledged, and what may be said about it."""
