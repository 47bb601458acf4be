"""What only the owner does: reign over an upstream and publish its frontier."""
