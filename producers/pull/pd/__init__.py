"""The Placement Driver: members, TSO, regions, and what keeps history from GC."""
