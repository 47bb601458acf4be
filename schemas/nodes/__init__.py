"""Nodes of ZooKeeper: their paths and their contents."""
