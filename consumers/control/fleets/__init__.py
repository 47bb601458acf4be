"""The processes that a capture starts, tends and ends with itself: sorters and processors."""
