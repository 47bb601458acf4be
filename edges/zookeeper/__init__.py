"""ZooKeeper: sessions, leases, and errors that say what to do."""
