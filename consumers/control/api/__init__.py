"""TiCDC's HTTP API, version 2 (docs/formats/cluster.md §9): routes, bodies and errors, and the server around them."""
