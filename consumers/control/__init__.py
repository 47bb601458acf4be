"""The control plane: owner, captures, changefeeds, scheduling, the API, and how captures talk to each other."""
