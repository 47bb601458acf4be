"""What stands between a sorter and its processors, and at the head of each output record."""
