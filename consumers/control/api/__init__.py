"""TiCDC's HTTP API, version 2 (reference/cluster.md §9): routes, bodies and errors, and the server around them."""
