"""Replication sets of spans over captures: the machine of one, the messages, the captures that carry them."""
