"""The control plane: captures, owner election, frontier, changefeeds."""
