"""Schema registries that a changefeed's sink may name."""
