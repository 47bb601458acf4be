"""Pure cores of scans of table images: which to begin, how one goes on, how fast it may go."""
