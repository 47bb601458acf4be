"""DDL jobs, what they change, and the versions of every table that come of them."""
