"""Flow proofs of a cut: what was landed against what is written, by sums of row ids."""
