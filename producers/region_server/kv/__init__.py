"""The store, and as much of the KV API as a CDC client asks."""
