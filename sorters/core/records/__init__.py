"""Output records: their order, sorted runs of them, and messages that hold several or a part of one."""
