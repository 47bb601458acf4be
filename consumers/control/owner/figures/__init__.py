"""What only the owner's metrics say."""
