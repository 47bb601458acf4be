"""What a sorter service decides."""
