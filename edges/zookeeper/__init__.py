"""ZooKeeper: how an ensemble is reached, and the one session with its lease."""
