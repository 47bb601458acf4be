"""Two-phase scheduling of table spans over captures: the pure part of the owner's coordinator and of the agents."""
