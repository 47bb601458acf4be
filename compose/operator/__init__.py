"""What an operator asks, looks up, and mends by hand."""
