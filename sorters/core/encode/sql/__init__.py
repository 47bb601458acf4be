"""SQL literals of database sinks."""
