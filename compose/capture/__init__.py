"""`tidebus capture`: the process that pulls its share of an upstream, and what it does beside that when it is owner."""
