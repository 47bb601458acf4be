"""Kafka as sorters see it: topics read by offset, topics made, and errors told apart."""
