"""Schema registries with the API of Confluent: how one is reached."""
