"""What a run keeps in ZooKeeper."""
