"""Avro in the Confluent wire format."""
