"""What captures say to each other, as bytes."""
