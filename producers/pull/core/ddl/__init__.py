"""Which DDL jobs are new, and TiDB's meta keys as a snapshot."""
