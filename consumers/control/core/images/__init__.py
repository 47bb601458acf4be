"""Table images: what the owner says of them in each frontier record."""
