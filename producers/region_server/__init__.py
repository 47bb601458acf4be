"""TiKV's CDC module and as much of PD and the KV API as a CDC client asks, over a small multi-region MVCC store."""
