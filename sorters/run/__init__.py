"""One run of a changefeed: the process, its epochs, and what must stand before a cut may run."""
