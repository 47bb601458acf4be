"""The console at ``/console``: pages of our own in a browser, over the API (docs/console.md)."""
