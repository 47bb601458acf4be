"""What a run tells of what it wrote: flow proofs, and states of tables."""
