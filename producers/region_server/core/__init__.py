"""The pure parts: MVCC, regions, resolver, delegate, incremental scan; no socket, clock, thread or task."""
