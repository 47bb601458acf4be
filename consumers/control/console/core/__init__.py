"""What the console's pages show, made of what the bus says: pure."""
