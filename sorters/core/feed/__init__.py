"""A changefeed as workers need it: compiled once, with all that its settings come to."""
