"""Where a record goes: its topic, its partition and its columns."""
