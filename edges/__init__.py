"""The one room in which clients of Kafka, ZooKeeper and schema registries are made."""
