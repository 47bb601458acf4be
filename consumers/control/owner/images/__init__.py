"""Table images as an owner has them: who wants them, which tables they are of, how far they are."""
