"""A recording of a real TiKV's EventFeed, played to a client."""
