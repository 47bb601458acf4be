"""simple, in JSON and in Avro."""
