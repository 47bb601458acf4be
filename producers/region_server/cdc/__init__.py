"""TiKV's CDC endpoint: registrations, incremental scans, events and resolved ts."""
