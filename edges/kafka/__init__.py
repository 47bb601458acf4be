"""Kafka: how a cluster is reached, and the readers, writers and admin that are made for it."""
