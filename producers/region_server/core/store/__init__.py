"""The multi-region MVCC store: versions, locks, transactions, DDL writes. Pure."""
