"""Flow proofs: counts and sums of row changes that every stage of the bus must agree on, and the records of them."""
