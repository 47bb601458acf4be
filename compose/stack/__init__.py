"""A local Kafka, ZooKeeper and schema registry as child processes on loopback, for people who have none at hand."""
