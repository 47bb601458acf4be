"""Which locks to resolve, and what is asked of TiKV for it."""
