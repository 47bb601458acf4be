"""Changefeeds in ZooKeeper: stored, changed by verbs, and driven through their states."""
