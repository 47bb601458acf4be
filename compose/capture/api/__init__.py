"""The HTTP API of a capture: its server, what the routes ask of the bus, and what a request may ask of a table."""
