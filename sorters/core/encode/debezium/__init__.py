"""debezium's JSON."""
