"""Who is there: captures, the election, the upstream's node, and the agent of a capture."""
