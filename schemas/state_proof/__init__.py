"""What a state proof is made of: a row's text, its hash, and SQL for the same: docs/formats/state-proofs.md."""
