"""Which tables, events and rows a changefeed leaves out."""
