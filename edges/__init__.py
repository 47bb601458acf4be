"""The edges: the one room in which clients of Kafka, ZooKeeper and schema registries are made.

Everybody else says what is to be read or written, and gets a client that is already let in: how a cluster is reached
is an access (:class:`~edges.kafka.access.KafkaAccess` and its like), plain data that is handed on from the command line
to the threads, child processes and tasks that need it.
"""
